"""The notebooks run from top to bottom, and lie in the repository without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def run(name: str) -> dict[str, Any]:
    mpl.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(FOLDER / name, "code"), 1):
        exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), names)
    return names


def test_drift_is_seen_and_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    results = run("see-and-mend-drift.ipynb")["results"]
    end = {name: result.summary["rolling_accuracy"] for name, result in results.items()}
    assert min(end["scaffold"], end["fedpvr"]) > end["fedavg"] + 0.05
    page = (tmp_path / "report.html").read_text()
    assert "Drift by layer" in page
    assert all(name in page.partition("<table")[2] for name in end)


def test_own_models_clients_and_rules_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run("your-own.ipynb")
    for result in (names["plain"], names["helped"], names["own"]):
        assert result.summary["final_accuracy"] > 0.75


def test_every_notebook_is_run() -> None:
    assert [path.name for path in NOTEBOOKS] == ["see-and-mend-drift.ipynb", "your-own.ipynb"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    assert len(cells(path, "markdown")) >= 4
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(path, "code"))
