"""Tables come from results/*.json and from nowhere else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from undrift.errors import ConfigError
from undrift.recipes.evidence import difference, falls_short, read_evidence, spread
from undrift.recipes.run import TUNED, UNTUNED
from undrift.recipes.tables import (
    END,
    START,
    readme_table,
    result_rows,
    results_page,
    shortfalls,
    with_table,
    write_pages,
)

ROOT = Path(__file__).parents[2]


def evidence(**more: Any) -> dict[str, Any]:
    arm: dict[str, Any] = {
        "label": "FSL", "group": "", "algorithm": "fsl", "setting": {"train.lr": 0.02}, "chosen": TUNED, "tried": [],
        "configuration": None, "paper": {"rounds_to:0.5": 203, "rolling_accuracy": 0.6144}, "runs": [], "missing": [],
        "ours": {"rounds_to:0.5": spread([90, 110]), "rolling_accuracy": spread([0.6, 0.61])},
    }  # fmt: skip
    return {
        "recipe": "toy", "paper": "P", "where": "table 1", "title": "t", "date": "2026-01-01", "command": "undrift x",
        "scale": 1.0, "scaled": False, "scaling": [], "stand_in": False,
        "metrics": ["rounds_to:0.5", "rolling_accuracy"],
        "tuning": {}, "versions": {"undrift": "0"}, "unmeasured": [], "notes": ["A note."], "arms": [arm],
        "missing": [], "failures": {}, **more,
    }  # fmt: skip


def test_rows_show_paper_ours_and_difference() -> None:
    rows = result_rows(evidence())
    assert result_rows(evidence(arms=[evidence()["arms"][0] | {"chosen": UNTUNED}]))[0][1] == "lr=0.02 †"
    assert rows[0] == ("FSL", "lr=0.02", "rounds to 50% (rolling)", "203", "100 ± 14 (2)", "-103")
    assert rows[1][3:] == ("0.6144", "0.6050 ± 0.0071 (2)", "-0.0094")


def test_shortfalls_are_said() -> None:
    assert list(shortfalls(evidence())) == ["FSL, accuracy (rolling): 0.6050 ± 0.0071 (2) against 0.6144"]


def test_an_accuracy_that_some_seed_never_reached_has_no_difference() -> None:
    partly = spread([90, None])
    assert partly == {"mean": 90, "std": 0.0, "seeds": 2, "without": 1}
    assert difference(203, partly) is None
    assert falls_short("rounds_to:0.5", 203, partly)
    assert falls_short("rounds_to:0.5", ">100", partly) is None


def test_scaled_and_stand_in_are_labelled() -> None:
    page = results_page([evidence(scaled=True, scale=0.1, scaling=["train.rounds: 1000 -> 100"])])
    assert "(scaled by 0.1)" in page
    assert "train.rounds: 1000 -> 100" in page
    assert "table 1 (scaled)" in readme_table([evidence(scaled=True)])
    assert "toy" not in readme_table([evidence(stand_in=True)])


def test_the_table_goes_between_the_markers() -> None:
    text = with_table(f"a\n{START}\nold\n{END}\nb\n", "new\n")
    assert text == f"a\n{START}\nnew\n{END}\nb\n"
    with pytest.raises(ConfigError, match="markers"):
        with_table("nothing", "new")


def test_pages_are_written(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    readme = tmp_path / "README.md"
    readme.write_text(f"{START}\n{END}\n")
    written = write_pages(tmp_path / "results", readme)
    assert [path.name for path in written] == ["README.md", "README.md"]


def test_committed_pages_are_what_the_evidence_says() -> None:
    folder = ROOT / "results"
    if not folder.is_dir():
        pytest.skip("no results in this tree")
    found = read_evidence(folder)
    assert (folder / "README.md").read_text(encoding="utf-8") == results_page(found)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert START in readme
    assert with_table(readme, readme_table(found)) == readme


def test_committed_evidence_names_no_place_of_a_machine() -> None:
    for path in (ROOT / "results").glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'"(/[^"/]+/|[A-Z]:)', text), path.name
