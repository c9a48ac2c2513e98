"""Every command in the documents on measures and diagnosis runs, on the configuration that stands before it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from undrift.cli import app

DOCS = Path(__file__).parents[2] / "docs"


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", ["measures.md", "diagnose.md"])
def test_the_commands_of_a_document_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (DOCS / name).read_text()
    Path("experiment.toml").write_text(blocks(text, "toml")[0])
    for command in "".join(blocks(text, "sh")).splitlines():
        program, *arguments = shlex.split(command)
        assert program == "undrift"
        out = CliRunner().invoke(app, arguments)
        assert out.exit_code == 0, f"{command}\n{out.output}{out.exception!r}"
