"""The commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from undrift.cli import app
from undrift.errors import ConfigError
from undrift.recipes import RECIPES

RUNNER = CliRunner()


def call(*words: str) -> str:
    result = RUNNER.invoke(app, list(words), catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undrift.recipes.estimate._calibrated", lambda *a: (0.01, 0.0001))


def test_recipes_are_listed() -> None:
    out = call("recipes")
    assert all(name in out for name in RECIPES)


def test_all_dry_run_names_everything_and_makes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = call("reproduce", "--all", "--dry-run", "--scale", "0.1", "--seeds", "1")
    assert all(f"{name}:" in out for name in RECIPES)
    assert "core hours" in out
    assert "[scaled]" in out
    assert not list(tmp_path.iterdir())


def test_a_recipe_from_end_to_end(tmp_path: Path) -> None:
    places = ("--out", str(tmp_path / "runs"), "--results", str(tmp_path / "results"))
    small = "--stand-in --scale 0.001 --seeds 1 --no-tune --only FedAvg --rounds 1 --jobs 1 -q"
    out = call("reproduce", "fsl-table-1", *small.split(), *places)
    assert "FedAvg" in out
    assert "missing" in out
    assert f"report: {tmp_path / 'runs' / 'report.html'}" in out
    assert "made-up data" in (tmp_path / "runs" / "report.html").read_text()
    assert "made-up data" in (tmp_path / "runs" / "plots" / "progress.svg").read_text()
    assert (tmp_path / "results" / "fsl-table-1.stand-in.json").exists()
    assert "--only FedAvg" in (tmp_path / "results" / "fsl.md").read_text()
    assert (tmp_path / "results" / "plots" / "fsl-table-1.stand-in.png").exists()
    assert "written" in call("results", "--results", str(tmp_path / "results"), "--readme", str(tmp_path / "none.md"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reproduce"], "--all"),
        (["reproduce", "nonsense"], "no recipe"),
        (["reproduce", "fsl-table-1", "--scale", "0"], "above 0"),
        (["reproduce", "fsl-table-1", "--fix", "FedDyn"], "ARM:KEY=VALUE"),
        (["reproduce", "fsl-table-1", "--set", "x"], "KEY=VALUE"),
        (["results", "--results", "/nowhere/at/all"], "no such folder"),
    ],
)
def test_wrong_input_is_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call(*words)
