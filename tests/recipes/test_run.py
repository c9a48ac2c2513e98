"""Carrying recipes out: tuning, resuming, budgets, missing runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from undrift.errors import ConfigError
from undrift.recipes.evidence import evidence_of, missing_runs, write_evidence
from undrift.recipes.pages import section
from undrift.recipes.recipe import Arm, Recipe, Tuning
from undrift.recipes.run import Options, arms_of, finished, planned, reproduce
from undrift.recipes.tables import result_rows

BASE: dict[str, Any] = {
    "data": {"name": "digits"},
    "partition": {"scheme": "classes", "clients": 10, "classes": 2},
    "server_data": {"source": "balanced", "size": 20},
    "model": {"name": "linear"},
    "train": {"rounds": 3, "cohort": 2, "batch_size": 20, "lr": 0.1},
}
TOY = Recipe(
    "toy",
    "a paper",
    "table 0",
    "digits",
    BASE,
    (
        Arm("FSL", "fsl", {"train.lr": 0.1}, {"train.lr": (1e-6, 0.1)}, {"rolling_accuracy": 0.9999}),
        Arm("FSL again", "fsl", {"train.lr": 1e-6}, {"train.lr": (1e-6, 0.1)}, tuned_with="FSL"),
        Arm("FedAvg", "fedavg", {}, {}, {"rolling_accuracy": None}),
    ),
    ("rounds_to:0.5", "rolling_accuracy", "ratio:FedAvg:rounds_to:0.2", "gain:FedAvg:rolling_accuracy", "megabytes"),
    seeds=2,
    tuning=Tuning(rounds=2, validation=0.2),
)


def options(out: Path, **more: Any) -> Options:
    return Options(out, **({"jobs": 1} | more))


def test_tuning_is_decided_on_validation_data_and_shared(tmp_path: Path) -> None:
    outcome = reproduce(TOY, options(tmp_path, seeds=1))
    assert outcome.chosen["FSL"].setting == {"train.lr": 0.1}
    assert outcome.chosen["FSL again"].setting == {"train.lr": 0.1}
    tuned, final = tmp_path / "FSL" / "tuning" / "lr=0.1" / "seed0", tmp_path / "FSL" / "lr=0.1" / "seed0"
    assert "validation_accuracy" in (tuned / "metrics.jsonl").read_text()
    assert "validation_accuracy" not in (final / "metrics.jsonl").read_text()
    tried = evidence_of(outcome, "x")["arms"][0]["tried"]
    assert [entry["setting"] for entry in tried] == [{"train.lr": 1e-6}, {"train.lr": 0.1}]


def test_earlier_tuning_runs_are_told_where_a_setting_is_given(tmp_path: Path) -> None:
    reproduce(TOY, options(tmp_path, seeds=1, only=("FSL",)))
    evidence = evidence_of(reproduce(TOY, options(tmp_path, seeds=1, only=("FSL",), tune=False)), "x")
    assert len(evidence["arms"][0]["tried"]) == 2
    assert "NOT tuned" in evidence["arms"][0]["chosen"]
    assert "- FSL: lr=1e-06: 0." in section(evidence, drawn=False)


def test_an_arm_alone_still_uses_what_was_tuned_for_another(tmp_path: Path) -> None:
    outcome = reproduce(TOY, options(tmp_path, seeds=1, only=("again",)))
    assert outcome.chosen["FSL again"].setting == {"train.lr": 0.1}
    assert outcome.chosen["FSL again"].how == "that of FSL (tuned on validation data)"
    assert list(outcome.runs) == ["FSL again"]


def test_an_equals_sign_asks_for_one_arm_whose_name_others_contain(tmp_path: Path) -> None:
    assert [arm.label for arm in arms_of(TOY, options(tmp_path, only=("FSL",)))] == ["FSL", "FSL again"]
    assert [arm.label for arm in arms_of(TOY, options(tmp_path, only=("=fsl",)))] == ["FSL"]
    with pytest.raises(ConfigError, match="no such arm"):
        arms_of(TOY, options(tmp_path, only=("=again",)))


def test_a_fixed_setting_is_not_tuned(tmp_path: Path) -> None:
    outcome = reproduce(TOY, options(tmp_path, seeds=1, only=("FSL",), fixed={"FSL": {"train.lr": 0.05}}))
    assert outcome.chosen["FSL"].setting == {"train.lr": 0.05}
    assert outcome.chosen["FSL"].how == "given by --fix"
    assert not (tmp_path / "FSL" / "tuning").exists()


def test_finished_runs_are_used_again_wherever_the_data_lie(tmp_path: Path) -> None:
    once = options(tmp_path, seeds=1, tune=False, only=("FedAvg",))
    run = reproduce(TOY, once).runs["FedAvg"][0]
    path = run.out / "config.toml"
    elsewhere = path.read_text().replace('name = "digits"', 'name = "digits"\nroot = "/elsewhere"')
    path.write_text(elsewhere.replace("weight_decay = 0.0\n", ""))  # as if the key had come later
    before = (run.out / "metrics.jsonl").stat().st_mtime_ns
    reproduce(TOY, once)
    assert (run.out / "metrics.jsonl").stat().st_mtime_ns == before


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    once = options(tmp_path, seeds=1, tune=False, only=("FedAvg",))
    reproduce(TOY, once)
    with pytest.raises(ConfigError, match=r"train\.rounds"):
        reproduce(TOY, replace(once, rounds=5))


def test_a_run_that_was_evaluated_more_often_will_do(tmp_path: Path) -> None:
    reproduce(TOY, options(tmp_path, seeds=1, tune=False, only=("FedAvg",)))
    coarse = replace(TOY, base={**BASE, "train": {**BASE["train"], "eval_every": 3}})
    assert finished(planned(coarse, options(tmp_path), TOY.arms[2], {}, 0))


def test_no_budget_no_run_and_missing_is_said(tmp_path: Path) -> None:
    outcome = reproduce(TOY, options(tmp_path, budget=0))
    assert not list(tmp_path.rglob("summary.json"))
    evidence = evidence_of(outcome, "undrift reproduce toy")
    assert len(missing_runs(evidence)) == 6
    assert "NOT tuned" in evidence["arms"][0]["chosen"]
    assert {row[4] for row in result_rows(evidence)} == {"missing"}
    assert "- Not run: 3 of 3 lines (FSL, FSL again, FedAvg)\n" in section(evidence, drawn=False)


def test_a_second_call_makes_what_is_missing(tmp_path: Path) -> None:
    reproduce(TOY, options(tmp_path, seeds=1, tune=False))
    outcome = reproduce(TOY, options(tmp_path, seeds=2, tune=False))
    assert not missing_runs(evidence_of(outcome, "x"))
    assert len(outcome.runs["FedAvg"]) == 2


def test_a_failure_is_told_and_shows_as_missing(tmp_path: Path) -> None:
    broken = replace(TOY, arms=(*TOY.arms[2:], Arm("broken", "fedavg", {"train.cohort": 999})))
    outcome = reproduce(broken, options(tmp_path, seeds=1))
    assert "999" in outcome.failures["broken/as-given/seed0"]
    assert missing_runs(evidence_of(outcome, "x")) == ["broken/as-given/seed0"]


def test_evidence_holds_no_places_and_all_numbers(tmp_path: Path) -> None:
    outcome = reproduce(TOY, options(tmp_path / "runs", seeds=2, tune=False))
    path = write_evidence(evidence_of(outcome, "undrift reproduce toy"), tmp_path / "results")
    text = path.read_text()
    assert path.name == "toy.json"
    assert str(tmp_path) not in text
    evidence = json.loads(text)
    by = evidence["arms"][0]["by"]
    assert by["versions"]["undrift"]
    assert by["versions"]["processor"]
    assert (by["command"], by["precision"]) == ("undrift reproduce toy", "fp32")
    assert [run["seed"] for run in evidence["arms"][0]["runs"]] == [0, 1]
    ours = {arm["label"]: arm["ours"] for arm in evidence["arms"]}
    assert ours["FedAvg"]["gain:FedAvg:rolling_accuracy"]["mean"] == 0
    values = [run["metrics"]["rolling_accuracy"] for run in evidence["arms"][0]["runs"]]
    assert ours["FSL"]["rolling_accuracy"]["mean"] == pytest.approx(sum(values) / 2)


def test_a_scaled_result_is_labelled(tmp_path: Path) -> None:
    outcome = reproduce(TOY, options(tmp_path, seeds=1, tune=False, scale=0.5, only=("FedAvg",)))
    evidence = evidence_of(outcome, "x")
    assert evidence["scaled"]
    assert write_evidence(evidence, tmp_path / "r").name == "toy.scaled.json"
    assert "**Smaller** than the paper's: " in section(evidence, drawn=False)


def test_lines_that_are_not_run_again_keep_what_was_found(tmp_path: Path) -> None:
    def write(only: str, command: str, **more: Any) -> dict[str, Any]:
        outcome = reproduce(TOY, options(tmp_path / "runs", seeds=1, tune=False, only=(only,), **more))
        path = write_evidence(evidence_of(outcome, command), tmp_path / "results")
        return {arm["label"]: arm for arm in json.loads(path.read_text())["arms"]}

    first = write("FSL again", "first")
    both = write("FedAvg", "second")
    assert both["FSL again"]["runs"] == first["FSL again"]["runs"]
    assert (both["FSL again"]["by"]["command"], both["FedAvg"]["by"]["command"]) == ("first", "second")
    gain = both["FSL again"]["ours"]["gain:FedAvg:rolling_accuracy"]
    ours, base = (both[name]["runs"][0]["metrics"]["rolling_accuracy"] for name in ("FSL again", "FedAvg"))
    assert gain["mean"] == pytest.approx(ours - base), "compared with a line that came later"
    assert first["FSL again"]["ours"]["gain:FedAvg:rolling_accuracy"]["seeds"] == 0


def test_a_line_that_now_means_something_else_is_not_kept(tmp_path: Path) -> None:
    def labels(recipe: Recipe, budget: float | None) -> list[str]:
        outcome = reproduce(recipe, options(tmp_path / "runs" / str(budget), seeds=1, tune=False, budget=budget))
        path = write_evidence(evidence_of(outcome, "x"), tmp_path / "results")
        return [arm["label"] for arm in json.loads(path.read_text())["arms"] if arm["runs"]]

    more = Arm("gone later", "fedavg", {"train.lr": 0.2})
    assert labels(replace(TOY, arms=(*TOY.arms, more)), None) == ["FSL", "FSL again", "FedAvg", "gone later"]
    changed = replace(TOY.arms[2], settings={"train.cohort": 3})
    assert labels(replace(TOY, arms=(*TOY.arms[:2], changed)), 0) == ["FSL", "FSL again", "gone later"]


def test_a_run_that_has_begun_is_told_as_far_as_it_has_come(tmp_path: Path) -> None:
    once = options(tmp_path, seeds=1, tune=False, only=("FedAvg",))
    run = reproduce(TOY, once).runs["FedAvg"][0]
    (run.out / "summary.json").unlink()
    lines = (run.out / "metrics.jsonl").read_text().splitlines()
    (run.out / "metrics.jsonl").write_text("\n".join(lines[:3]) + "\n")
    arm = evidence_of(reproduce(TOY, replace(once, budget=0)), "x")["arms"][2]
    assert [(begun["round"], begun["rounds"]) for begun in arm["under_way"]] == [(2, 3)]
    assert arm["under_way"][0]["curve"][-1][1] == round(json.loads(lines[2])["test_accuracy"], 4)
    assert not arm["runs"]
    longer = evidence_of(reproduce(TOY, replace(once, budget=0, rounds=9)), "x")["arms"][2]
    assert not longer["under_way"], "that folder holds another run"


def test_notes_on_lines_that_are_kept_stay(tmp_path: Path) -> None:
    def notes(recipe: Recipe, only: str) -> list[str]:
        outcome = reproduce(recipe, options(tmp_path / "runs", seeds=1, tune=False, only=(only,)))
        path = write_evidence(evidence_of(outcome, "x"), tmp_path / "results")
        return list(json.loads(path.read_text())["notes"])

    notes(replace(TOY, notes=("chosen by eye",)), "FSL again")
    assert notes(replace(TOY, notes=("new",)), "FedAvg") == ["new", "chosen by eye"]
    outcome = reproduce(replace(TOY, notes=("all new",)), options(tmp_path / "runs", seeds=1, tune=False))
    path = write_evidence(evidence_of(outcome, "x"), tmp_path / "results")
    assert json.loads(path.read_text())["notes"] == ["all new"]


def test_another_experiment_of_that_name_is_not_mixed_in(tmp_path: Path) -> None:
    def runs(scale: float, budget: float | None) -> list[Any]:
        outcome = reproduce(TOY, options(tmp_path / f"{scale}", seeds=1, tune=False, scale=scale, budget=budget))
        path = write_evidence(evidence_of(outcome, "x"), tmp_path / "results")
        return [run for arm in json.loads(path.read_text())["arms"] for run in arm["runs"]]

    assert len(runs(0.5, None)) == 3
    assert not runs(0.9, 0)


def test_an_unknown_arm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are: FSL; FSL again; FedAvg"):
        reproduce(TOY, options(tmp_path, only=("FedProx",)))
