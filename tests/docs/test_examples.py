"""Every Python example in the documents runs; the blocks of one document share their names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def named_files(text: str) -> list[tuple[str, str]]:
    """Configurations that a document shows under their names: `name.toml`: and the block."""
    return re.findall(r"^`([\w.-]+\.toml)`:\n+```toml\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_the_python_examples_of_a_document_run(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in named_files(path.read_text()):
        (tmp_path / name).write_text(content)
    names: dict[str, object] = {"__name__": __name__}
    for number, block in enumerate(python_blocks(path.read_text())):
        exec(compile(block, f"{path.name}, example {number + 1}", "exec"), names)


def test_the_worked_examples_learn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": __name__}
    for block in python_blocks((ROOT / "docs" / "rules.md").read_text()):
        exec(block, names)
    first, *others = capsys.readouterr().out.splitlines()
    assert float(first.split()[0]) > 0.8
    assert len(others) == 7
    assert [other for other in others if float(other.split(",")[0]) <= 0.8] == []
