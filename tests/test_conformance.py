"""Every rule and every combination: finite, deterministic, the same bits however it is carried out, bytes as sent."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from undrift import models
from undrift.errors import ConfigError
from undrift.experiment.config import read
from undrift.experiment.from_config import work_of
from undrift.models.layers import Dropout
from undrift.rounds.loop import Result
from undrift.rounds.plan import Plan
from undrift.rules import RULES, named
from undrift.rules.chain import Chain
from undrift.rules.rule import Rule

FULL = ("fedavg", "fedprox", "scaffold", "fedpvr", "feddyn", "slowmo", "fedadc", "fsl", "ds", "centralised")
PARAMETERS: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0.1},
    "feddyn": {"alpha": 0.2},
    "slowmo": {"beta": 0.5},
    "fedadc": {"beta": 0.5},
    "fsl": {"gamma": 0.5},
    "ds": {"share": 0.5},
    "fedpvr": {"layers": 1},
}
SIZES = (6, 11, 7, 14, 10)
COHORT, ROUNDS, SHARED = 3, 4, 4
PARAMETER_COUNT, BUFFER_COUNT, LAST_LAYER = 4 * 6 + 6 + 12 + 6 * 3 + 3, 12, 6 * 3 + 3


def reason_against(names: tuple[str, ...]) -> bool:
    """Whether a combination makes no sense: two owners of one thing, or a partner for centralised training."""
    others = [name for name in names if name != "fedavg"]
    step = {"feddyn", "slowmo", "fedadc"} & set(names)
    correction = {"feddyn", "scaffold", "fedpvr"} & set(names)
    return len(step) > 1 or len(correction) > 1 or ("centralised" in names and len(others) > 1)


COMBINATIONS = [c for size in (1, 2, 3) for c in itertools.combinations(FULL, size)]
SENSIBLE = [c for c in COMBINATIONS if not reason_against(c) and (len(c) == 1 or "fedavg" not in c)]
SENSELESS = [c for c in COMBINATIONS if reason_against(c)]


def model() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), Dropout(0.25), nn.Linear(6, 3))


@cache
def data() -> tuple[list[tuple[Tensor, Tensor]], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    make = torch.Generator().manual_seed(0)

    def draw(n: int, shift: float) -> tuple[Tensor, Tensor]:
        return torch.randn(n, 4, generator=make) + shift, torch.randint(3, (n,), generator=make)

    return [draw(n, 0.2 * i) for i, n in enumerate(SIZES)], draw(8, 0.0), draw(50, 0.5)


def combined(names: tuple[str, ...]) -> Chain:
    return named("+".join(names), PARAMETERS)


def simulated(rule: Rule, workers: int = 0, **more: Any) -> Result:
    clients, server, test = data()
    settings: dict[str, Any] = {
        "rounds": ROUNDS,
        "cohort": COHORT,
        "batch_size": 4,
        "lr": 0.1,
        "schedule": "cosine",
        "weight_decay": 0.01,
        "seed": 3,
        "server_data": server,
        "test_data": test,
        "workers": workers,
    }
    return ud.simulate(model(), clients, rule, **{**settings, **more})


def facts(result: Result) -> dict[str, Any]:
    """Everything that must be the same, without the clock."""
    assert result.server is not None
    return {
        "model": {name: tensor.tolist() for name, tensor in result.model.state_dict().items()},
        "x": result.server.x.tolist(),
        "history": [{k: v for k, v in r.items() if k != "seconds"} for r in result.history],
        "rounds": [{k: v for k, v in r.items() if k != "seconds"} for r in result.rounds],
        "summary": {k: v for k, v in result.summary.items() if k != "seconds"},
    }


def label(names: tuple[str, ...]) -> str:
    return "+".join(names)


def test_all_rules_are_covered() -> None:
    assert set(FULL) <= set(RULES)
    assert len(SENSIBLE) == 60


@pytest.mark.parametrize("names", SENSELESS, ids=label)
def test_senseless_combinations_are_refused_with_a_reason(names: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="algorithm: ") as refusal:
        combined(names)
    assert sum(repr(name) in str(refusal.value) for name in names) >= 2
    assert "both own" in str(refusal.value) or "has no rounds between clients" in str(refusal.value)


def test_a_rule_may_not_be_given_twice() -> None:
    with pytest.raises(ConfigError, match="'fsl' is given twice"):
        named("dsl+fsl")
    with pytest.raises(ConfigError, match="'scaffold' is given twice"):
        named("scaffold+fsl+scaffold")


def expected_bytes(names: tuple[str, ...], rounds: list[list[int]], *, track: bool = False) -> list[tuple[int, int]]:
    """Down and up in each round, from the sizes of the messages: 4 bytes a number, 8 a label."""
    whole = 4 * (PARAMETER_COUNT + BUFFER_COUNT)
    vector, last = 4 * PARAMETER_COUNT, 4 * LAST_LAYER
    informed: set[int] = set()
    expected = []
    for cohort in rounds:
        if "centralised" in names:
            expected.append((0, 0))
            continue
        each_down = vector * ("scaffold" in names) + last * ("fedpvr" in names)
        each_down += vector * ("fedadc" in names and not track)
        each_up = whole + vector * ("scaffold" in names) + last * ("fedpvr" in names)
        fresh = set(cohort) - informed if "ds" in names else set()
        informed |= fresh
        down = whole * (len(SIZES) if track else len(cohort)) + each_down * len(cohort)
        expected.append((down + len(fresh) * SHARED * (4 * 4 + 8), each_up * len(cohort)))
    return expected


@pytest.mark.parametrize("names", SENSIBLE, ids=label)
def test_finite_deterministic_the_same_on_workers_and_bytes_as_the_formula_says(names: tuple[str, ...]) -> None:
    rule = combined(names)
    first, second = simulated(rule), simulated(rule, workers=2 if len(names) < 3 else 0)
    assert facts(first) == facts(second)
    assert first.server is not None
    assert torch.isfinite(first.server.x).all()
    assert torch.isfinite(first.server.buffers).all()
    start = torch.cat([p.detach().flatten() for p in model().parameters()])
    assert not torch.equal(first.server.x, start)
    sent = [(r["bytes_down"], r["bytes_up"]) for r in first.history[1:]]
    assert sent == expected_bytes(names, [line["clients"] for line in first.rounds])
    assert first.summary["bytes_down"] == sum(down for down, _ in sent)
    assert first.summary["bytes_up"] == sum(up for _, up in sent)
    if "centralised" not in names:
        assert [line["clients"] for line in first.rounds] == cohorts()


@cache
def cohorts() -> list[list[int]]:
    """Who is drawn under FedAvg: every other algorithm must see the same draws."""
    return [line["clients"] for line in simulated(ud.fedavg()).rounds]


def test_cohorts_are_subsets_drawn_without_replacement() -> None:
    assert all(len(set(cohort)) == COHORT and set(cohort) <= set(range(len(SIZES))) for cohort in cohorts())
    assert len({tuple(sorted(cohort)) for cohort in cohorts()}) > 1
    drawn = [c for round in range(1, 401) for c in Plan(rounds=400, lr=0.1, cohort=2, seed=1).cohort_of(round, 5)]
    assert all(abs(drawn.count(client) - 160) < 45 for client in range(5))
    plan = Plan(rounds=1, lr=0.1, cohort=2)
    assert plan.cohort_of(1, 2) == [0, 1]
    assert plan.cohort_of(1, 1) == [0]


def test_tracked_momentum_is_broadcast_to_all() -> None:
    result = simulated(ud.fedadc(beta=0.5, downlink="track") + ud.scaffold())
    sent = [(r["bytes_down"], r["bytes_up"]) for r in result.history[1:]]
    assert sent == expected_bytes(("fedadc", "scaffold"), cohorts(), track=True)


SINGLE = [c for c in SENSIBLE if len(c) == 1]


@pytest.mark.parametrize("names", [*SINGLE, ("scaffold", "fedadc"), ("fedpvr", "fsl")], ids=label)
def test_the_number_of_workers_changes_nothing(names: tuple[str, ...]) -> None:
    rule = combined(names)
    runs = [facts(simulated(rule, workers=workers, rounds=3)) for workers in (0, 1, 3)]
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.parametrize(
    ("name", "width", "layers", "times", "tolerance"),
    [("vgg11", 1.0, 3, 2.1, 0.04), ("resnet8", 1.0, 1, 2.02, 0.01)],
)
def test_partial_control_sends_hardly_more_than_averaging(
    name: str, width: float, layers: int, times: float, tolerance: float
) -> None:
    torch.manual_seed(0)
    module = models.build(name, input_shape=(3, 32, 32), classes=10, width=width, seed=0)
    clients = [(torch.randn(2, 3, 32, 32), torch.tensor([0, 1]))]
    result = ud.simulate(module, clients, ud.fedpvr(layers), rounds=1, batch_size=2, lr=0.001, workers=0)
    size = 4 * sum(t.numel() for t in module.state_dict().values() if t.is_floating_point())
    assert (result.summary["bytes_down"] + result.summary["bytes_up"]) / size == pytest.approx(times, abs=tolerance)


CONFIG = """
seed = 2
[data]
name = "synthetic"
samples = 400
features = 6
[partition]
scheme = "dirichlet"
alpha = 0.5
clients = 8
[server_data]
source = "iid"
size = 20
[model]
name = "mlp"
hidden = [16]
[algorithm]
name = "{algorithm}"
[algorithm.fedadc]
beta = 0.5
[train]
rounds = {rounds}
cohort = 3
lr = 0.05
batch_size = 10
eval_every = 3
[engine]
workers = {workers}
checkpoint_seconds = {checkpoint}
"""


def test_partitions_and_cohorts_do_not_depend_on_the_algorithm(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(algorithm="fedavg", workers=0, checkpoint=10, rounds=20))
    plain = work_of(read(path))
    for algorithm in ("scaffold", "fedprox+fedadc", "fsl", "dsl"):
        other = work_of(read(path, [f"algorithm.name={algorithm}"]))
        assert (other.federation.indices == plain.federation.indices).all()
        assert (other.federation.offsets == plain.federation.offsets).all()
        assert [other.plan.cohort_of(t, 8) for t in range(20)] == [plain.plan.cohort_of(t, 8) for t in range(20)]
    moved = work_of(read(path, ["seed=3", "partition.seed=2"]))
    assert (moved.federation.indices == plain.federation.indices).all()
    assert [moved.plan.cohort_of(t, 8) for t in range(20)] != [plain.plan.cohort_of(t, 8) for t in range(20)]
