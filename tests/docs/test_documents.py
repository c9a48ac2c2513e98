"""Every example and every command in the documents runs, in the order in which a reader meets them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from undrift.cli import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"^`([\w.-]+\.toml)`:\n+```toml\n(.*?)^```", re.DOTALL | re.MULTILINE)
TOML = re.compile(r"^```toml\n(.*?)^```", re.DOTALL | re.MULTILINE)
ELSEWHERE = {
    "pip install": "tools/package.sh",
    "make": "the Makefile's own targets, in .ci/run",
    "undrift demo": "tests/test_demo.py",
    "undrift recipes": "tests/recipes/test_cli.py",
    "undrift reproduce": "tests/recipes/test_cli.py",
    "undrift results": "tests/recipes/test_cli.py",
    "undrift run study.toml": "tests/flower/test_federation.py",
    "python cut.py": "tests/flower/test_federation.py",
    "undrift federation": "tests/flower/test_federation.py",
}
"""Commands in ``console`` blocks: too long for here, or waiting for others; who runs them."""


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def configurations(text: str) -> dict[str, str]:
    """Files that a document shows: under their names, or the first one as experiment.toml."""
    files, unnamed = dict(FILE.findall(text)), TOML.findall(text)
    return files or ({"experiment.toml": unnamed[0]} if unnamed else {})


def run_command(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == "undrift"
    out = CliRunner().invoke(app, arguments)
    assert out.exit_code == 0, f"{command}\n{out.output}{out.exception!r}"


def run_document(path: Path) -> None:
    text = path.read_text()
    for name, content in configurations(text).items():
        Path(name).write_text(content)
    names: dict[str, object] = {"__name__": __name__}
    for number, (kind, block) in enumerate(BLOCK.findall(text), 1):
        if kind == "python":
            exec(compile(block, f"{path.name}, example {number}", "exec"), names)
        else:
            for command in block.splitlines():
                run_command(command)


@pytest.mark.parametrize("path", [one for one in DOCUMENTS if BLOCK.search(one.read_text())], ids=named)
def test_a_document_does_what_it_says(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_document(path)


@pytest.mark.parametrize("path", DOCUMENTS, ids=named)
def test_commands_that_are_only_shown_are_run_by_another_test(path: Path) -> None:
    for command in re.findall(r"^\$ (.*)$", path.read_text(), re.MULTILINE):
        assert any(command.startswith(known) for known in ELSEWHERE), command


@pytest.mark.parametrize("place", sorted(set(ELSEWHERE.values())))
def test_the_other_tests_are_there(place: str) -> None:
    assert "/" not in place or " " in place or (ROOT / place).exists()


def test_the_worked_examples_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_document(ROOT / "docs" / "rules.md")
    first, *others = capsys.readouterr().out.splitlines()
    assert float(first.split()[0]) > 0.8
    assert len(others) == 7
    assert [other for other in others if float(other.split(",")[0]) <= 0.8] == []


@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=named)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text()):
        assert (path.parent / target).exists(), target


def test_the_first_screen_has_ten_lines_of_python() -> None:
    block = BLOCK.search((ROOT / "README.md").read_text())
    assert block is not None
    assert block[1] == "python"
    assert len([line for line in block[2].splitlines() if line.strip()]) <= 10
