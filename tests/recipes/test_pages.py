"""Tables and pages come from results/*.json and from nowhere else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from undrift.errors import ConfigError
from undrift.recipes import RECIPES
from undrift.recipes.evidence import difference, falls_short, read_evidence, spread
from undrift.recipes.metrics import late
from undrift.recipes.pages import END, START, index, page_name, pages, readme_table, section, with_table, write_pages
from undrift.recipes.run import TUNED, UNTUNED
from undrift.recipes.tables import result_rows, shortfalls, wide_rows
from undrift.report.evidence import write_picture

ROOT = Path(__file__).parents[2]


def arm(label: str = "FSL", **more: Any) -> dict[str, Any]:
    curves = [[[0, 0.1, 2.0, 0.1], [10, 0.6 + seed / 100, 1.0, 0.5]] for seed in (0, 1)]
    return {
        "label": label,
        "group": "",
        "algorithm": "fsl",
        "setting": {"train.lr": 0.02},
        "chosen": TUNED,
        "tried": [],
        "configuration": None,
        "paper": {"rounds_to:0.5": 203, "rolling_accuracy": 0.6144},
        "missing": [],
        "runs": [{"seed": seed, "curve": curve, "metrics": {}, "measured": {}} for seed, curve in enumerate(curves)],
        "ours": {"rounds_to:0.5": spread([90, 110]), "rolling_accuracy": spread([0.6, 0.61])},
        "by": {"command": "undrift x", "date": "2026-01-01", "versions": {"undrift": "0"}, "precision": "bf16"},
        **more,
    }


def evidence(**more: Any) -> dict[str, Any]:
    return {
        "recipe": "toy",
        "paper": "P (journal)",
        "where": "table 1",
        "title": "t",
        "date": "2026-01-01",
        "command": "undrift x",
        "scale": 1.0,
        "size": None,
        "scaled": False,
        "scaling": [],
        "stand_in": False,
        "metrics": ["rounds_to:0.5", "rolling_accuracy"],
        "tuning": {},
        "unmeasured": [],
        "notes": ["A note."],
        "arms": [arm()],
        "failures": {},
        **more,
    }


NEVER: dict[str, Any] = {"runs": [], "ours": {}, "missing": ["a/seed0"]}


def test_rows_show_paper_ours_and_difference() -> None:
    rows = result_rows(evidence())
    assert result_rows(evidence(arms=[arm(chosen=UNTUNED)]))[0][1] == "lr=0.02 †"
    assert rows[0] == ("FSL", "lr=0.02", "rounds to 50% (rolling)", "203", "100 ± 14 (2)", "-103")
    assert rows[1][3:] == ("0.6144", "0.6050 ± 0.0071 (2)", "-0.0094")


def test_a_page_has_one_row_for_each_line_that_was_run() -> None:
    head, *rows = wide_rows(evidence(arms=[arm(), arm("other", paper={}), arm("never", **NEVER)]))
    assert head == ("algorithm", "setting", "rounds to 50% (rolling)", "paper", "accuracy (rolling)", "paper")
    assert rows[0] == ("FSL", "lr=0.02", "100 ± 14 (2)", "203", "0.6050 ± 0.0071 (2)", "0.6144")
    assert rows[1][3] == "-"
    assert len(rows) == 2
    unmeasured = arm(ours={"rounds_to:0.5": spread([None]), "rolling_accuracy": spread([])})
    assert wide_rows(evidence(arms=[unmeasured]))[1][2:5:2] == ("not reached (1)", "-")


def test_shortfalls_are_said() -> None:
    said = "FSL, accuracy (rolling): 0.6050 ± 0.0071 (2) against 0.6144"
    assert list(shortfalls(evidence())) == [said]
    assert f"- P (journal), table 1: {said}\n" in index([evidence()])
    assert f"- P (journal), table 1 (scaled by 0.1): {said}\n" in index([evidence(scaled=True, scale=0.1)])


def test_an_accuracy_that_some_seed_never_reached_has_no_difference() -> None:
    partly = spread([90, None])
    assert partly == {"mean": 90, "std": 0.0, "seeds": 2, "without": 1}
    assert difference(203, partly) is None
    assert falls_short("rounds_to:0.5", 203, partly)
    assert falls_short("rounds_to:0.5", ">100", partly) is None


def test_rounds_to_what_another_reaches_late() -> None:
    slow = [[r, a, 0.0, 0.0] for r, a in ((0, 0.1), (10, 0.3), (20, 0.57), (30, 0.6))]
    fast = [[r, a, 0.0, 0.0] for r, a in ((0, 0.1), (5, 0.57), (30, 0.7))]
    assert late(fast, slow) == 5 / 20  # 95 % of .6 are .57, which the slow one has after 20 rounds
    assert late(slow, slow) == 1
    assert late(slow[:2], slow) is None


def test_a_result_states_how_it_was_made() -> None:
    text = section(evidence(), drawn=False)
    assert "`undrift x` (2026-01-01; seeds 0, 1; undrift 0, bf16)" in text
    old = {key: value for key, value in arm().items() if key != "by"}
    assert "`undrift y` (2026-01-01; seeds 0, 1; undrift 9)" in section(
        evidence(arms=[old], command="undrift y", versions={"undrift": "9"}), drawn=False
    )


def test_what_is_missing_stands_in_one_line() -> None:
    never = [arm(name, group="C=1", **NEVER) for name in ("A", "B")]
    partly = arm(group="C=2", missing=["FSL/seed2"])
    e = evidence(arms=[*never, partly, arm("B", group="C=2", **NEVER)])
    said = "3 of 4 lines (C=1, C=2: B); seeds: 1 of C=2: FSL"
    assert f"- Not run: {said}\n" in section(e, drawn=False)
    assert f"- P (journal), table 1: {said}\n" in index([e])
    assert "missing" not in section(e, drawn=False)


def test_runs_under_way_are_shown_where_all_have_come_to_and_decide_nothing(tmp_path: Path) -> None:
    def begun(name: str, last: int, top: float) -> dict[str, Any]:
        curve = [[r, 0.1, 2.0, top * r / 40] for r in range(0, last + 1, 10)]
        return arm(name, **NEVER, under_way=[{"seed": 0, "round": last, "rounds": 40, "curve": curve}])

    done = arm("FedAvg")
    done["runs"] = [{"seed": 0, "metrics": {}, "measured": {}, "curve": [[r, 0.1, 2.0, 0.3] for r in (0, 10, 20, 40)]}]
    e = evidence(recipe="fsl-table-1", arms=[begun("FSL n_0=500", 30, 0.8), begun("FedDyn", 20, 0.4), done])
    said = "rolling accuracy at round 20, seed 0: FSL n_0=500 0.4000, FedDyn 0.2000, FedAvg 0.3000; "
    said += "not finished: FSL n_0=500 seed 0: 30 of 40 rounds, FedDyn seed 0: 20 of 40 rounds"
    assert f"- **Under way** {said}\n" in section(e, drawn=False)
    assert f"- P (journal), table 1: {said}\n" in index([e])
    assert "**met**" not in index([e])
    older = arm("old", runs=[{"seed": 0, "metrics": {}, "measured": {}, "curve": [[0, 0.1, 2.0], [20, 0.2, 2.0]]}])
    assert said in index([{**e, "arms": [*e["arms"], older]}]), "a result without rolling accuracy is left out"
    pytest.importorskip("matplotlib")
    assert write_picture(evidence(arms=[begun("FSL", 30, 0.8)]), tmp_path / "so-far.png")


def test_recipes_without_a_result_are_listed() -> None:
    assert all(f"(`{name}`)" in index([]) for name in RECIPES)
    assert "(`fsl-table-1`)" not in index([evidence(recipe="fsl-table-1")])
    assert "(`fsl-table-1`)" in index([evidence(recipe="fsl-table-1", stand_in=True)])


def test_verdicts_stand_in_the_index_and_on_the_page() -> None:
    lines = [
        arm(name, ours={"rounds_to:0.5": spread([half, half]), "rolling_accuracy": spread([end, end])})
        for name, half, end in (("FSL n_0=500", 90, 0.7), ("FedAvg", 200, 0.65), ("FedDyn", 80, 0.66))
    ]
    e = evidence(recipe="fsl-table-1", paper="FSL (journal)", arms=lines)
    row = next(line for line in index([e]).splitlines() if "faster and ends higher than FedDyn" in line)
    assert "| **not met** (2 seeds) |" in row
    assert "FSL n_0=500 90 ± 0 (2), FedDyn 80 ± 0 (2) (**no**)" in row
    assert "[table I](fsl.md#fsl-table-1)".replace("table I", "table 1") in row
    told = next(line for line in section(e, drawn=False).splitlines() if "More server data help" in line)
    assert "**Open**: what it needs has not been run or measured" in told


def test_scaled_and_stand_in_are_labelled() -> None:
    text = section(evidence(scaled=True, scale=0.1, scaling=["train.rounds: 1000 -> 100"]), drawn=False)
    assert "(scaled by 0.1)" in text
    assert "train.rounds: 1000 -> 100" in text
    assert "made-up data" in section(evidence(stand_in=True), drawn=False)


def test_readme_has_the_papers_size_and_several_seeds_only() -> None:
    assert "| P (journal), table 1 | FSL |" in readme_table([evidence()])
    one = arm()
    one["runs"] = one["runs"][:1]
    for other in (evidence(scaled=True), evidence(stand_in=True), evidence(arms=[one]), evidence(arms=[arm(paper={})])):
        assert "FSL" not in readme_table([other])


def test_one_page_a_paper() -> None:
    found = pages([evidence(), evidence(paper="P (conference)"), evidence(paper="Q")], frozenset({"toy"}))
    assert list(found) == ["README.md", "p.md", "q.md"]
    assert "# P (journal) and P (conference)\n" in found["p.md"]
    assert "![t](plots/toy.png)" in found["q.md"]
    assert "![t]" not in section(evidence(), drawn=False)
    assert page_name("beyond the papers") == "beyond.md"


def test_the_table_goes_between_the_markers() -> None:
    text = with_table(f"a\n{START}\nold\n{END}\nb\n", "new\n")
    assert text == f"a\n{START}\nnew\n{END}\nb\n"
    with pytest.raises(ConfigError, match="markers"):
        with_table("nothing", "new")


def test_pages_are_written(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "toy.json").write_text(json.dumps(evidence()))
    readme = tmp_path / "README.md"
    readme.write_text(f"{START}\n{END}\n")
    written = write_pages(tmp_path / "results", readme)
    assert [path.name for path in written] == ["README.md", "p.md", "README.md"]


def test_a_result_is_drawn_from_its_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "plots" / "toy.png"
    several = evidence(arms=[arm(group="a"), arm("B", group="a"), arm(group="b")], scaled=True)
    assert write_picture(several, path)
    first = path.read_bytes()
    assert first.startswith(b"\x89PNG")
    assert write_picture(several, path)
    assert path.read_bytes() == first
    other = arm(group="a")
    other["runs"][0]["curve"][1][3] = 0.9
    write_picture(evidence(arms=[other]), path)
    assert path.read_bytes() != first
    assert not write_picture(evidence(arms=[arm(**NEVER)]), tmp_path / "none.png")


def test_committed_pages_are_what_the_evidence_says() -> None:
    folder = ROOT / "results"
    if not folder.is_dir():
        pytest.skip("no results in this tree")
    found = read_evidence(folder)
    drawn = {path.stem: path.stat().st_size for path in (folder / "plots").glob("*.png")}
    assert set(drawn) == {path.name.removesuffix(".json") for path in folder.glob("*.json")}
    assert max(drawn.values()) < 100_000
    for name, text in pages(found, frozenset(drawn)).items():
        assert (folder / name).read_text(encoding="utf-8") == text
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert START in readme
    assert with_table(readme, readme_table(found)) == readme


def test_committed_evidence_names_no_place_of_a_machine() -> None:
    for path in (ROOT / "results").glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'"(/[^"/]+/|[A-Z]:)', text), path.name
