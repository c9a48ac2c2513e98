"""The race by parts: who races, for how long, how candidates go on, and what follows from how they end."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import undrift as ud
from undrift.core.files import read_lines
from undrift.diagnose.advice import Candidate
from undrift.diagnose.answer import can_be_private, expected, instead, ordered
from undrift.diagnose.budget import SMALLEST, STEP, Budget, budget_of
from undrift.diagnose.candidates import chains, field_of, layers_for, other_rate
from undrift.diagnose.costs import Bytes
from undrift.diagnose.plan import forward_flops, plan_probe
from undrift.diagnose.probe import Findings, Point, ServerData
from undrift.diagnose.race import (
    FIRST,
    Heat,
    Outcome,
    Racer,
    Standing,
    believed,
    cost,
    error_of_difference,
    handicap,
    heats,
    latest,
    planned,
    ranked,
    sizes,
)
from undrift.diagnose.track import go_on, share_of, track_of
from undrift.experiment.config import parse
from undrift.experiment.from_config import data_of, run_config, work_of
from undrift.experiment.run_many import Planned
from undrift.rounds.progress import Monitor

ACCURACY, LOSS = Monitor("accuracy"), Monitor("loss", less=True)


def findings(**changes: Any) -> Findings:
    point = Point("start", 5.0, 1.0, 1.0, 0.1, 0.8, True)
    found = Findings(
        20,
        10,
        40,
        1000,
        5.0,
        None,
        5.0,
        [point],
        1.0,
        3.0,
        {"body": 1.0, "head": 4.0},
        {"body": 0.9, "head": 0.1},
        0.5,
        ServerData(50, 0.8, 0.1, True, 0.05),
    )
    return replace(found, **changes)


def names(found: Findings, **options: Any) -> set[str]:
    return {one.name for one in field_of(found, ["head"], **options).candidates}


def test_all_sensible_chains_can_be_built_and_triples_are_among_them() -> None:
    assert {"fedpvr+fedadc+fsl", "scaffold+fedadc+fsl", "feddyn+fsl", "fedavg"} <= set(chains())
    for name in chains():
        assert ud.algorithm(name) is not None
    assert len(chains()) == len(set(chains())) == 26


def test_the_probe_leaves_out_what_cannot_win_and_says_why() -> None:
    assert {"scaffold+fedadc+fsl", "fedpvr+fedadc+fsl", "feddyn+fsl", "fedadc", "fedavg"} <= names(findings())
    assert not any("fedprox" in name.split("+") for name in names(findings()))
    assert {"scaffold+slowmo+fsl", "fedpvr+slowmo"} <= names(findings())
    assert "fedprox+slowmo+fsl" in names(findings(), broad=True)
    rare = field_of(findings(clients=1000), [])
    assert {one.name for one in rare.candidates} == {*("fedavg", "fsl", "slowmo", "slowmo+fsl", "fedadc", "fedadc+fsl")}
    assert "stale or hardly used" in rare.left_out["scaffold"]
    alone = field_of(findings(server=None), [])
    assert alone.left_out["fsl"] == "the server has no data"
    misled = field_of(findings(server=ServerData(50, -0.2, 0.5, True, 0.05)), [])
    assert "would mislead" in misled.left_out["fsl"]
    assert not any("fsl" in one.parts for one in misled.candidates)
    assert "fedpvr" in field_of(findings(layers={"only": 1.0}), []).left_out


def test_first_values() -> None:
    assert layers_for(findings(), ["head"]) == 1
    assert layers_for(findings(), ["body"]) == ["body"]
    assert layers_for(findings(), []) == 1


def test_another_rate_is_tried_half_where_steps_diverge_else_twice() -> None:
    """With momentum beta a step of lr * L counts 1 / (1 - beta) times; from 2 on plain steps diverge."""
    plain, high = Candidate("fedadc"), Candidate("fedadc", {"fedadc": {"beta": 0.9}})
    assert other_rate(findings(smoothness=1.9, rate=1.0), plain) == 2
    assert other_rate(findings(smoothness=2.0, rate=1.0), plain) == 0.5
    assert other_rate(findings(smoothness=1.9, rate=0.1), high) == 2  # .19 / .1
    assert other_rate(findings(smoothness=2.1, rate=0.1), high) == 0.5  # .21 / .1


def test_heats() -> None:
    assert sizes(14) == [14, 7, 3, 2]
    assert sizes(5) == [5, 2]
    assert sizes(2) == [2]
    plan = heats(5, 40, 40)  # 5 x 4, and 20 rounds for two
    assert plan == [Heat(5, 4), Heat(2, 14)]
    assert cost(plan) == 20 + 20
    assert cost(plan, variants=2) == 40 + 2 * 14
    assert heats(5, 40, 8) == [Heat(5, 3), Heat(2, 8)]
    assert heats(9, 36, 40) == [Heat(5, 4), Heat(2, 12)]  # with six the finalists would not reach round 12
    broad = heats(22, 6 * 60, 60)  # a tenth of the run for each heat: 22 x 6, 11 x 6 ..., and the rest for two
    assert broad == [Heat(22, 6), Heat(11, 12), Heat(5, 18), Heat(2, 60)]


@pytest.mark.parametrize("budget", [8, 13, 19.5, 52, 130.0, 1300])
@pytest.mark.parametrize("variants", [0, 1, 2])
@pytest.mark.parametrize("start", [0.0, 1.5])
def test_a_race_never_costs_more_than_its_budget(budget: float, variants: int, start: float) -> None:
    plan = planned(16, Budget(budget, start), 50, variants)
    starts = sum(heat.racers for heat in plan) + variants
    assert not plan or cost(plan, variants) + starts * start <= budget
    assert plan or budget < 20
    if plan and plan[0].racers > 3:
        assert plan[0].until >= FIRST
    bounds = [heat.until for heat in plan]
    assert bounds == sorted(bounds)


def test_a_run_and_a_race_are_counted_by_the_same_measure() -> None:
    config = parse(digits(rounds=100, eval_every=5))
    work = work_of(config.with_(("algorithm", {"name": "fedavg"})))
    plan = replace(plan_probe(work), passes=1000)
    flops = forward_flops(work)
    # 10 clients of 144 samples or less, 4 of them a round, batches of 20; 40 samples at the server; 360 for testing
    sizes_, tested = work.federation.sizes, len(work.evaluated()["test"])
    client = sum(3 * n + math.ceil(n / 20) * STEP / flops for n in sizes_) / 10
    run = 100 * (4 * client + tested / 5)
    found = budget_of(work, 50, 1.3, plan)
    assert found.rounds == pytest.approx((max(1.3 * run, SMALLEST / flops) - 3000) / (5 * client + 50))
    assert budget_of(work, 50, 13, plan).rounds == pytest.approx((13 * run - 3000) / (5 * client + 50))


def digits(**train: Any) -> dict[str, Any]:
    return {
        "data": {"name": "digits"},
        "partition": {"scheme": "classes", "clients": 10, "classes": 2},
        "server_data": {"source": "balanced", "size": 40},
        "model": {"name": "mlp", "hidden": [16]},
        "train": {"rounds": 6, "cohort": 4, "batch_size": 20, "lr": 0.05, **train},
        "engine": {"workers": 0},
    }


def kept(folder: Path) -> list[dict[str, Any]]:
    lines = [*read_lines(folder / "metrics.jsonl"), *read_lines(folder / "rounds.jsonl")]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_candidate_goes_on_as_if_it_had_never_stopped(schedule: str, tmp_path: Path) -> None:
    config = parse(digits(schedule=schedule))
    track = track_of(config, data_of(config))
    one = track.config.with_(("algorithm", {"name": "scaffold+fedadc+fsl"}))
    for until in (2, 3, 6):
        go_on(track, Planned("x", one, tmp_path / "heats"), until)
    go_on(track, Planned("x", one, tmp_path / "whole"), 6)
    assert kept(tmp_path / "heats") == kept(tmp_path / "whole")
    usual = run_config(one, None)  # the same rounds as in a run: only test data are not looked at
    assert [r["train_loss"] for r in usual.history] == [
        r["train_loss"] for r in read_lines(tmp_path / "whole" / "metrics.jsonl")
    ]
    assert "test_accuracy" not in read_lines(tmp_path / "whole" / "metrics.jsonl")[-1]


def test_how_much_is_held_out() -> None:
    assert share_of(100_000, 1000) == 0.05
    assert share_of(10_000, 100) == 0.1
    assert share_of(1000, 100) == 0.2
    assert round(6 * share_of(60_000, 6)) == 1
    assert share_of(80, 2) == 0.2  # one of two would be half of all data


def test_what_the_server_has_does_not_judge() -> None:
    config = parse(digits() | {"server_data": {"source": "iid", "size": 700}})
    data = data_of(config)
    track = track_of(config, data)
    assert track.federation.validation is not None
    assert track.federation.server is not None
    judged, known = (
        part.take(np.arange(len(part)))[0] for part in (track.federation.validation, track.federation.server)
    )
    assert not {row.numpy().tobytes() for row in judged} & {row.numpy().tobytes() for row in known}
    share = 1 - track.samples / (0.2 * len(data.train))
    assert share == pytest.approx(700 / len(data.train), abs=0.08)


def standing(name: str, value: float, rounds: int = 20, error: float = 0.01, lr: float = 0.1) -> Standing:
    config = parse({"algorithm": {"name": name}, "train": {"lr": lr}})
    curve = [(r, value) for r in range(rounds + 1)]
    return Standing(Racer(Candidate(name), config), rounds, value, error, curve, sampling=error)


def costs_of(**bytes: int) -> dict[str, Bytes]:
    return {name.replace("_", "+"): Bytes(size, size) for name, size in bytes.items()}


def test_of_those_that_cannot_be_told_apart_the_cheaper_stands_first() -> None:
    costs = costs_of(scaffold=200, fedadc=150, fedavg=100)
    close = [standing("scaffold", 0.80), standing("fedadc", 0.798), standing("fedavg", 0.7)]
    outcome = Outcome(close, [Heat(3, 20)], ACCURACY)
    assert [one.racer.candidate.name for one in outcome.tied] == ["scaffold", "fedadc"]
    assert [one.racer.candidate.name for one in ordered(outcome, costs, 0.1)] == ["fedadc", "scaffold", "fedavg"]
    apart = Outcome([close[0], standing("fedadc", 0.79), close[2]], [Heat(3, 20)], ACCURACY)
    assert [one.racer.candidate.name for one in ordered(apart, costs, 0.1)] == ["scaffold", "fedadc", "fedavg"]
    earlier = Outcome([close[0], standing("fedadc", 0.80, rounds=5)], [Heat(2, 5), Heat(1, 20)], ACCURACY)
    assert len(earlier.tied) == 1


def test_the_prediction_counts_as_far_as_samples_and_rounds_leave_it_open() -> None:
    """Posterior of N(prior, .035^2) and N(value, error^2 + .025^2): with equal variances the mean of both."""
    error = math.sqrt(0.035**2 - 0.025**2)
    prior = {"scaffold": 0.09, "fedadc": 0.05}
    few = [standing("fedadc", 0.81, error=error), standing("scaffold", 0.80, error=error)]
    assert [one.racer.candidate.name for one in ranked(few, ACCURACY, prior)] == ["scaffold", "fedadc"]
    assert believed(few[0], prior, error) == pytest.approx((0.81 + 0.05) / 2)
    assert Outcome(few[::-1], [Heat(2, 20)], ACCURACY, prior=prior).apart(few[1], few[0])  # .015 > .25 * .0245 / sqrt 2
    close = {"scaffold": 0.064, "fedadc": 0.05}
    assert not Outcome(few[::-1], [Heat(2, 20)], ACCURACY, prior=close).apart(few[1], few[0])  # .002 is less
    many = [standing("fedadc", 0.83, error=0.002), standing("scaffold", 0.80, error=0.002)]
    near = {"scaffold": 0.06, "fedadc": 0.05}
    assert [one.racer.candidate.name for one in ranked(many, ACCURACY, near)] == ["fedadc", "scaffold"]
    assert [one.racer.candidate.name for one in ranked(few, ACCURACY, {})] == ["fedadc", "scaffold"]


def test_what_both_gain_from_round_to_round_is_no_error() -> None:
    rising = [(r, 0.1 + 0.02 * r) for r in range(21)]
    ahead = [(r, value + 0.01 + 0.001 * (-1) ** r) for r, value in rising]
    one, other = (replace(standing("fedadc", 0.5, error=0.0), curve=curve, sampling=0.003) for curve in (rising, ahead))
    differences = [0.01 + 0.001 * (-1) ** r for r in range(14, 21)]  # the latest third of 20 rounds
    assert error_of_difference(one, other) == pytest.approx(
        math.hypot(statistics.stdev(differences) / math.sqrt(7), 0.003)
    )


def test_a_larger_rate_must_be_clearly_ahead() -> None:
    costs, configured = costs_of(fedadc=150), standing("fedadc", 0.798)

    def first(value: float, monitor: Monitor = ACCURACY) -> float:
        faster = standing("fedadc", value, lr=0.2)
        faster = replace(faster, handicap=handicap(configured, monitor))
        outcome = Outcome([configured], [Heat(1, 20)], monitor).with_variants([faster], {})
        return ordered(outcome, costs, 0.1)[0].racer.config.train.lr

    assert first(0.82) == 0.1
    assert first(0.84) == 0.2
    assert first(0.73, LOSS) == 0.1  # a tenth of .798 is wanted
    assert first(0.70, LOSS) == 0.2


def test_who_would_rather_take_another_one() -> None:
    costs = costs_of(scaffold_fsl=200, scaffold=200, fsl=100, fedavg=100)
    found = instead([standing(name, 0.8) for name in ("scaffold+fsl", "scaffold", "fsl", "fedavg")], costs)
    told = {one.standing.racer.candidate.name: one.when for one in found}
    assert told == {
        "scaffold": "the server's data may not be used or updates must be private (dp)",
        "fsl": "fewer bytes count or clients must not keep a state",
    }
    assert can_be_private("fedavg")
    assert not can_be_private("fsl")


def test_a_curve_is_carried_on_to_the_last_round() -> None:
    curve = [(t, 0.9 - 0.5 / math.sqrt(t)) for t in range(1, 21)]
    one = replace(standing("fedavg", curve[-1][1], error=0.0), curve=[(0, 0.1), *curve])
    found = expected(one, 100, ACCURACY)
    assert found.value == pytest.approx(0.85)
    assert found.low < found.value < found.high <= 1.0
    falling = [(t, 1.0 / math.sqrt(t)) for t in range(1, 21)]
    less = expected(replace(one, value=falling[-1][1], curve=falling), 400, LOSS)
    assert less.value == pytest.approx(0.05)
    assert 0.0 <= less.low <= less.value <= less.high
    there = expected(replace(one, error=0.02), 20, ACCURACY)
    assert (there.low, there.high) == pytest.approx((there.value - 0.04, there.value + 0.04))


def test_the_latest_third_of_the_rounds_counts() -> None:
    curve = [(t, float(t)) for t in range(9)]
    assert latest(curve, 8) == [6.0, 7.0, 8.0]
    assert latest(curve, 3) == [3.0]
    assert latest(curve[:1], 3) == [0.0]
