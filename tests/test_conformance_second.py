"""The second family, alone and with the first: finite, the same bits however it is carried out, bytes as sent."""

from __future__ import annotations

import itertools
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import undrift as ud
from test_conformance import data, facts, label
from test_interruptions import PowerCutError, assert_same_folders
from undrift.data.federation import from_clients
from undrift.engines.auto import engine_for
from undrift.errors import ConfigError
from undrift.experiment.run_folder import RunFolder
from undrift.models.layers import Dropout
from undrift.rounds.loop import Result, Run
from undrift.rounds.plan import Plan
from undrift.rounds.prepare import prepare
from undrift.rules import RULES, named
from undrift.rules.chain import Chain

FIRST = ("fedprox", "scaffold", "fedpvr", "feddyn", "slowmo", "fedadc", "fsl", "ds", "centralised")
SPLIT = ("sfl-v1", "sfl-v2", "minibatch-sfl")
SECOND = (
    "fedopt",
    "fedavgm",
    "fednova",
    "moon",
    "personal",
    "topk",
    "quantise",
    "median",
    "trimmed",
    "krum",
    "clip",
    "choice",
    "dp",
)
PARAMETERS: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.1},
    "feddyn": {"alpha": 0.5},
    "slowmo": {"beta": 0.5},
    "fedadc": {"beta": 0.5},
    "fsl": {"gamma": 0.5},
    "ds": {"share": 0.5},
    "fedopt": {"optimiser": "yogi"},
    "topk": {"fraction": 0.3},
    "quantise": {"bits": 4},
    "krum": {"byzantine": 0},
    "clip": {"norm": 0.1},
    "choice": {"candidates": 4},
    "dp": {"clip": 0.3, "noise": 0.5, "delta": 1e-3},
}
COHORT, ROUNDS, CANDIDATES = 3, 3, 4
P, LAST, LAYERS = 4 * 6 + 6 + 12 + 6 * 3 + 3, 6 * 3 + 3, 2
STEP = {"feddyn", "slowmo", "fedadc", "fedopt", "fedavgm"}
AGGREGATE = {"median", "trimmed", "krum", "dp"}
ENCODE = {"fednova", "topk", "quantise", "dp"}
WHOLE = {"moon", "personal", "topk", "quantise", "fednova", "median", "trimmed", "krum", "clip", "choice", "dp"}


def senseless(one: str, other: str) -> bool:
    """Whether a pair, in this order, makes no sense."""
    both = {one, other}
    return (
        "centralised" in both
        or (bool(both & set(SPLIT)) and bool(both & WHOLE))
        or both <= STEP
        or both <= AGGREGATE
        or both == {"choice", "dp"}
        or ("dp" in both and bool(both & {"ds", "fednova"}))
        or ("fednova" in both and bool(both & {"feddyn", "fedadc"}))
        or (one, other) in {("quantise", "topk"), ("dp", "topk"), ("dp", "quantise")}
    )


PAIRS = [*itertools.product(FIRST, SECOND), *itertools.permutations(SECOND, 2), *itertools.product(SPLIT, WHOLE)]
SENSELESS = [pair for pair in PAIRS if senseless(*pair)]
WITH_FIRST = [pair for pair in itertools.product(FIRST, SECOND) if not senseless(*pair)]
AMONG = [
    ("topk", "quantise"),
    ("topk", "dp"),
    ("quantise", "dp"),
    ("personal", "topk"),
    ("personal", "dp"),
    ("personal", "moon"),
    ("personal", "median"),
    ("fednova", "topk"),
    ("fednova", "fedopt"),
    ("fednova", "quantise"),
    ("moon", "median"),
    ("moon", "dp"),
    ("topk", "krum"),
    ("quantise", "trimmed"),
    ("clip", "median"),
    ("clip", "dp"),
    ("choice", "topk"),
    ("choice", "fedopt"),
    ("fedopt", "dp"),
    ("personal", "topk", "quantise", "dp"),
    ("scaffold", "topk", "quantise", "dp"),
    ("fedadc", "fsl", "dp"),
    ("personal", "scaffold", "fsl"),
    ("fedpvr", "topk", "quantise"),
    ("scaffold", "fsl", "median"),
]


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.ReLU(), Dropout(0.25), nn.Linear(6, 3))


def combined(names: tuple[str, ...]) -> Chain:
    return named("+".join(names), PARAMETERS)


def simulated(names: tuple[str, ...], workers: int = 0, **more: Any) -> Result:
    clients, server, test = data()
    settings: dict[str, Any] = {
        "rounds": ROUNDS,
        "cohort": COHORT,
        "batch_size": 4,
        "lr": 0.1,
        "schedule": "cosine",
        "weight_decay": 0.01,
        "weighting": "uniform",
        "seed": 3,
        "server_data": server,
        "test_data": test,
        "workers": workers,
    }
    return ud.simulate(model(), clients, combined(names), **{**settings, **more})


def test_all_rules_are_covered() -> None:
    assert {"fedavg", *FIRST, *SPLIT, *SECOND} == set(RULES)
    assert len(WITH_FIRST) == 95


def test_every_other_pair_is_accepted_and_senseless_ones_are_refused_with_a_reason() -> None:
    for one, other in PAIRS:
        if senseless(one, other):
            with pytest.raises(ConfigError, match="algorithm: ") as refusal:
                combined((one, other))
            assert repr(one) in str(refusal.value)
            assert repr(other) in str(refusal.value)
        else:
            combined((one, other))


# Bytes.


def packed(numbers: int, names: tuple[str, ...], layers: int) -> int:
    """A vector of 32-bit numbers, or of 4-bit ones and a scale for each layer."""
    return math.ceil(numbers / 2) + 4 * layers if "quantise" in names else 4 * numbers


def expected_bytes(names: tuple[str, ...], cohorts: list[list[int]]) -> list[tuple[int, int]]:
    """Down and up in each round, from the sizes of the messages."""
    size = P - LAST if "personal" in names else P
    layers = LAYERS - ("personal" in names)
    controlled, pieces = (size, layers) if "scaffold" in names else (0, 0)
    if "fedpvr" in names:
        controlled, pieces = (size, 1) if "personal" in names else (LAST, 1)
    k = math.ceil(0.3 * size)
    up = 4 * k + packed(k, names, 1) if "topk" in names else packed(size, names, layers)
    up += packed(controlled, names, pieces) + 4 * ("fednova" in names)
    down = 4 * (size + controlled + size * ("fedadc" in names))
    asked = CANDIDATES if "choice" in names else 0
    informed: set[int] = set()
    expected = []
    for cohort in cohorts:
        fresh = set(cohort) - informed if "ds" in names else set()
        informed |= fresh
        whole = down * len(cohort) + max(0, asked - len(cohort)) * 4 * size
        expected.append((whole + len(fresh) * 4 * (4 * 4 + 8), up * len(cohort) + 4 * asked))
    return expected


def check(names: tuple[str, ...], workers: tuple[int, ...], **more: Any) -> None:
    runs = [simulated(names, count, **more) for count in workers]
    assert all(facts(run) == facts(runs[0]) for run in runs)
    first = runs[0]
    assert first.server is not None
    assert torch.isfinite(first.server.x).all()
    start = torch.cat([p.detach().flatten() for p in model().parameters()])
    assert not torch.equal(first.server.x, start)
    sent = [(r["bytes_down"], r["bytes_up"]) for r in first.history[1:]]
    assert sent == expected_bytes(names, [line["clients"] for line in first.rounds])
    assert first.summary["bytes_up"] == sum(up for _, up in sent)
    if not {"dp", "choice"} & set(names):
        assert [line["clients"] for line in first.rounds] == cohorts()[: len(first.rounds)]


@cache
def cohorts() -> list[list[int]]:
    """Who is drawn under FedAvg: every rule that leaves this alone must see the same draws."""
    return [line["clients"] for line in simulated(("fedavg",)).rounds]


@pytest.mark.parametrize("names", [(name,) for name in SECOND], ids=label)
def test_alone_the_same_on_any_number_of_workers_and_bytes_as_the_formula_says(names: tuple[str, ...]) -> None:
    check(names, (0, 1, 2))


@pytest.mark.parametrize("names", WITH_FIRST, ids=label)
def test_with_the_first_family(names: tuple[str, ...]) -> None:
    check(names, (0, 2), rounds=2)


@pytest.mark.parametrize("names", AMONG, ids=label)
def test_with_each_other(names: tuple[str, ...]) -> None:
    check(names, (0, 2), rounds=2)


# Resuming.


@pytest.mark.parametrize(
    "names",
    [
        *((name,) for name in SECOND),
        ("scaffold", "topk", "quantise", "dp"),
        ("personal", "scaffold", "moon"),
        ("ds", "choice"),
        ("fedpvr", "fsl", "median"),
    ],
    ids=label,
)
def test_a_resumed_run_ends_in_the_same_bits(names: tuple[str, ...], tmp_path: Path) -> None:
    clients, server, test = data()
    plan = Plan(
        rounds=5, lr=0.1, schedule="cosine", cohort=COHORT, batch_size=4, seed=3, weighting="uniform", eval_every=5
    )
    federation = from_clients(clients, server=server, test=test)
    work = prepare(model(), combined(names), federation, plan, nn.functional.cross_entropy, "cpu")
    whole = Run(work, engine_for, 0, folder=RunFolder(tmp_path / "whole", {}, resume=False), state_budget=400).go()

    def cut(round: int, rounds: int, record: Any) -> None:
        if round == 4:
            raise PowerCutError(round)
        run.checkpoint_seconds = -1.0 if round < 2 else 1e9

    run = Run(work, engine_for, 2, folder=RunFolder(tmp_path / "cut", {}, resume=False), progress=cut, state_budget=400)
    run.checkpoint_seconds = -1.0
    with pytest.raises(PowerCutError):
        run.go()
    resumed = Run(work, engine_for, 0, folder=RunFolder(tmp_path / "cut", {}, resume=True), state_budget=400).go()
    assert facts(resumed) == facts(whole)
    assert_same_folders(tmp_path / "cut", tmp_path / "whole")
