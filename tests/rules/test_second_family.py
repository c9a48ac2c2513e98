"""The second family against an independent computation: partial participation, unequal clients, decaying rates."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import second
import torch
from reference import Net, Settings
from test_closed_form import CLASSES, CLIENTS, HIDDEN, INPUTS, SERVER, error, flat, layers, memories, module, tensors
from torch import Tensor, nn

import undrift as ud
from undrift.core.streams import HookRandom
from undrift.rounds.plan import Plan
from undrift.rules.compress import Quantise
from undrift.rules.rule import Rule

PAIRS = [tensors(client) for client in CLIENTS]
ALIKE = {"weighting": "uniform"}
LAST = layers(1) != 0
MEMBERS = {1, 4}
ADC = {"beta": 0.8, "embed": 1.0, "variant": "nesterov"}


def opt(optimiser: str, **more: Any) -> second.Algorithm:
    return {"fedopt": {"optimiser": optimiser, "lr": 0.2, **more}}


# name -> (rule, the same for the reference, settings that differ from the reference's defaults)
Case = tuple[Rule, second.Algorithm, dict[str, Any]]
CASES: dict[str, Case] = {
    **{name: (ud.fedopt(name, lr=0.2), opt(name), {"rounds": 6}) for name in ("adam", "yogi", "adagrad", "momentum")},
    "adam-tau-betas": (
        ud.fedopt("adam", lr=0.3, beta1=0.5, beta2=0.8, tau=0.1),
        {"fedopt": {"optimiser": "adam", "lr": 0.3, "beta1": 0.5, "beta2": 0.8, "tau": 0.1}},
        {"rounds": 6, "weighting": "uniform"},
    ),
    "yogi+scaffold+fsl": (
        ud.fedopt("yogi", lr=0.2) + ud.scaffold() + ud.fsl(gamma=0.5, steps=4),
        opt("yogi") | {"scaffold": {}, "fsl": {"gamma": 0.5, "steps": 4}},
        {},
    ),
    "fedavgm": (ud.fedavgm(lr=0.7, beta1=0.6), opt("momentum", beta1=0.6) | {}, {}),
    "fednova": (ud.fednova(), {"fednova": {}}, {"local_epochs": 2}),
    "fednova-uniform": (ud.fednova(), {"fednova": {}}, ALIKE | {"server_lr": 0.5}),
    "fednova+fedprox": (ud.fednova() + ud.fedprox(0.4), {"fednova": {}, "fedprox": {"mu": 0.4}}, {"local_epochs": 3}),
    "fednova+scaffold": (ud.fednova() + ud.scaffold(), {"fednova": {}, "scaffold": {}}, {}),
    "fednova+slowmo": (ud.fednova() + ud.slowmo(beta=0.6), {"fednova": {}, "slowmo": {"beta": 0.6}}, {}),
    "clip": (ud.clip(norm=0.2), {"clip": {"norm": 0.2}}, ALIKE),
    "clip+feddyn": (ud.clip(norm=0.2) + ud.feddyn(0.3), {"clip": {"norm": 0.2}, "feddyn": {"alpha": 0.3}}, ALIKE),
    "median-odd": (ud.median(), {"median": {}}, ALIKE),
    "median-even": (ud.median(), {"median": {}}, ALIKE | {"cohort": 4}),
    "median+scaffold": (ud.median() + ud.scaffold(), {"median": {}, "scaffold": {}}, ALIKE | {"cohort": 5}),
    "median+feddyn": (ud.median() + ud.feddyn(0.3), {"median": {}, "feddyn": {"alpha": 0.3}}, ALIKE | {"cohort": 5}),
    "trimmed": (ud.trimmed(share=0.25), {"trimmed": {"share": 0.25}}, ALIKE | {"cohort": 6}),
    "trimmed+slowmo": (
        ud.trimmed(share=0.2) + ud.slowmo(beta=0.6),
        {"trimmed": {"share": 0.2}, "slowmo": {"beta": 0.6}},
        ALIKE | {"cohort": None},
    ),
    "krum": (ud.krum(byzantine=1, keep=1), {"krum": {"byzantine": 1, "keep": 1}}, ALIKE | {"cohort": 5}),
    "krum+scaffold": (
        ud.krum(byzantine=2, keep=3) + ud.scaffold(),
        {"krum": {"byzantine": 2, "keep": 3}, "scaffold": {}},
        ALIKE | {"cohort": 6},
    ),
    "topk": (ud.topk(0.2), {"topk": {"fraction": 0.2}}, {"rounds": 7}),
    "topk+scaffold": (ud.topk(0.2) + ud.scaffold(), {"topk": {"fraction": 0.2}, "scaffold": {}}, {"rounds": 6}),
    **{f"quantise-{b}": (ud.quantise(b), {"quantise": {"bits": b}}, {}) for b in (8, 4, 2)},
    "quantise+scaffold": (ud.quantise(4) + ud.scaffold(), {"quantise": {"bits": 4}, "scaffold": {}}, {}),
    "topk+quantise": (ud.topk(0.3) + ud.quantise(4), {"topk": {"fraction": 0.3}, "quantise": {"bits": 4}}, {}),
    "dp": (ud.dp(0.3, 0.5, 1e-3), {"dp": {"clip": 0.3, "noise": 0.5}}, ALIKE | {"rounds": 6}),
    "dp+scaffold": (
        ud.scaffold() + ud.dp(0.3, 0.5, 1e-3),
        {"dp": {"clip": 0.3, "noise": 0.5}, "scaffold": {}},
        ALIKE | {"rounds": 6},
    ),
    "dp+feddyn": (
        ud.feddyn(0.5) + ud.dp(0.3, 0.05, 1e-3),
        {"dp": {"clip": 0.3, "noise": 0.05}, "feddyn": {"alpha": 0.5}},
        ALIKE,
    ),
    "fedadc+fsl+dp": (
        ud.fedadc(beta=0.8) + ud.fsl(gamma=0.5, steps=4) + ud.dp(0.3, 0.2, 1e-3),
        {"dp": {"clip": 0.3, "noise": 0.2}, "fedadc": ADC, "fsl": {"gamma": 0.5, "steps": 4}},
        ALIKE | {"rounds": 5},
    ),
    "topk+quantise+dp": (
        ud.topk(0.3) + ud.quantise(4) + ud.dp(0.2, 0.5, 1e-3),
        {"dp": {"clip": 0.2, "noise": 0.5}, "topk": {"fraction": 0.3}, "quantise": {"bits": 4}},
        ALIKE | {"rounds": 6},
    ),
    "personal": (ud.personal(1), {"personal": {"mask": LAST}}, {"rounds": 7}),
    "personal-named": (ud.personal(["0"]), {"personal": {"mask": ~LAST}}, {"rounds": 7, "server_lr": 0.5}),
    "personal+scaffold": (
        ud.personal(1) + ud.scaffold(),
        {"personal": {"mask": LAST}, "scaffold": {"mask": ~LAST}},
        {"rounds": 7},
    ),
    "personal+adam": (ud.personal(1) + ud.fedopt(lr=0.1), {"personal": {"mask": LAST}} | opt("adam"), {"rounds": 6}),
    "moon": (ud.moon(mu=0.7), {"moon": {"mu": 0.7, "temperature": 0.5}}, {"rounds": 7}),
    "moon-layer": (ud.moon(2.0, 0.3, layer="1"), {"moon": {"mu": 2.0, "temperature": 0.3}}, {"rounds": 6}),
    "choice": (ud.choice(candidates=5), {"choice": {"candidates": 5}}, {"rounds": 6}),
    "attack": (
        ud.attack("sign-flip", share=0.3, scale=3.0) + ud.scaffold(),
        {"attack": {"scale": 3.0}, "scaffold": {}},
        {"rounds": 6},
    ),
    "attack+topk+median": (
        ud.attack("sign-flip", share=0.3, scale=2.0) + ud.topk(0.5) + ud.median(),
        {"attack": {"scale": 2.0}, "topk": {"fraction": 0.5}, "median": {}},
        ALIKE | {"cohort": 5},
    ),
}
CASES["fedavgm"][1]["fedopt"]["lr"] = 0.7
CASES["personal+adam"][1]["fedopt"]["lr"] = 0.1


def simulated(rule: Rule, settings: Settings | None = None, **more: Any) -> ud.Result:
    given = vars(settings or Settings())
    return ud.simulate(module(HIDDEN), PAIRS, rule, server_data=tensors(SERVER), workers=0, **{**given, **more})


def weights(result: ud.Result) -> Tensor:
    assert result.server is not None
    return result.server.x


@pytest.mark.parametrize("name", CASES)
def test_same_numbers_as_the_equations(name: str, tmp_path: Path) -> None:
    rule, algorithm, changes = CASES[name]
    settings, start = Settings(**changes), module(HIDDEN)
    if "attack" in algorithm:
        (attack,) = (link for link in rule.for_clients(len(PAIRS), settings.seed).links if link.name == "attack")  # type: ignore[attr-defined]
        algorithm["attack"]["members"] = attack.members
        assert len(attack.members) == 2
    expected = second.run(Net(INPUTS, HIDDEN, CLASSES), flat(start), CLIENTS, SERVER, settings, algorithm)
    result = simulated(rule, settings, out=tmp_path / "run")
    assert [line["clients"] for line in result.rounds] == expected.cohorts
    assert error(flat(result.model), expected.first.x) < 1e-9
    assert error(expected.first.x, flat(start)) > 1e-3
    state = {
        key: value for own in (result.server.state if result.server else {}).values() for key, value in own.items()
    }
    shared = ~LAST if name == "personal+scaffold" else np.ones_like(LAST)
    for key, value in (("c", expected.first.c), ("h", expected.first.h), ("m", expected.first.m), ("v", expected.v)):
        if key in state and "personal+adam" not in name:
            assert error(state[key], value[shared]) < 1e-9, key
    kept = memories(tmp_path / "run")
    for i, residual in expected.residual.items():
        assert error(kept[i]["topk/e"], residual) < 1e-9
    for i, last in expected.last.items():
        if "moon" in algorithm:
            assert error(kept[i]["moon/y"], last) < 1e-9
        else:
            assert error(kept[i]["personal/layers"], last[algorithm["personal"]["mask"]]) < 1e-9


# Identities.


def same(one: Rule, other: Rule, **settings: Any) -> bool:
    return torch.equal(weights(simulated(one, **settings)), weights(simulated(other, **settings)))


def near(one: Rule, other: Rule, first: dict[str, Any], then: dict[str, Any]) -> float:
    return error(weights(simulated(one, **first)), weights(simulated(other, **then)))


def test_momentum_without_memory_is_averaging_with_a_server_rate() -> None:
    assert near(ud.fedopt("momentum", lr=0.6, beta1=0.0), ud.fedavg(), {}, {"server_lr": 0.6}) < 1e-12
    assert near(ud.fedavgm(lr=0.6, beta1=0.0), ud.fedavg(), {}, {"server_lr": 0.6}) < 1e-12


def test_equal_steps_make_fednova_averaging() -> None:
    equal = {"local_steps": 4}
    assert near(ud.fednova(), ud.fedavg(), equal, equal) < 1e-12
    assert near(ud.fednova() + ud.fedprox(0.3), ud.fedprox(0.3), equal, equal) < 1e-12
    assert near(ud.fednova(), ud.fedavg(), {}, {}) > 1e-4


def test_moon_without_weight_and_topk_of_everything_change_no_bit() -> None:
    assert same(ud.moon(mu=0.0), ud.fedavg())
    assert not same(ud.moon(mu=1.0), ud.fedavg())
    assert same(ud.topk(fraction=1.0) + ud.scaffold(), ud.scaffold())
    whole, plain = simulated(ud.topk(fraction=1.0)), simulated(ud.fedavg())
    assert whole.summary["bytes_up"] == plain.summary["bytes_up"]


def test_what_needs_no_shortening_and_no_trimming_changes_nothing() -> None:
    assert same(ud.clip(norm=1e6), ud.fedavg(), weighting="uniform")
    assert near(ud.trimmed(share=0.0), ud.fedavg(), ALIKE, ALIKE) < 1e-12
    assert near(ud.krum(byzantine=0, keep=3), ud.fedavg(), ALIKE, ALIKE) < 1e-12
    assert near(ud.choice(candidates=len(PAIRS)), ud.fedavg(), {"cohort": None}, {"cohort": None}) < 1e-12


@pytest.mark.parametrize(("byzantine", "chosen"), [(0, 9), (1, 4), (2, 2)])
def test_krum_counts_the_six_minus_f_minus_two_nearest(byzantine: int, chosen: int) -> None:
    """By hand, f = 1: ``4`` has 2, 1 and 9 near, squares 4 + 9 + 25 = 38; ``2`` has 1, 4 and 9: 1 + 4 + 49 = 54."""
    points = torch.tensor([[2.0], [9.0], [12.0], [12.0], [1.0], [4.0]])
    found = ud.krum(byzantine=byzantine, keep=1).aggregate({"delta": points, "up/c": 10 * points})
    assert found["delta"].tolist() == [chosen]
    assert found["up/c"].tolist() == [10 * chosen]


def test_krum_says_how_many_clients_it_needs() -> None:
    with pytest.raises(ud.RunError, match=r"3 clients were heard from; byzantine = 1 and keep = 1 need at least 4"):
        simulated(ud.krum(byzantine=1), weighting="uniform")


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_rounding_is_right_on_average_and_packed_in_so_many_bits(bits: int) -> None:
    v = torch.randn(11, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rule, form = Quantise(bits), {"delta": v, "up": {}}
    total = torch.zeros_like(v)
    at = _client(0)
    for round in range(1, 4001):
        at.random = HookRandom(0, round, 0, "quantise")
        sent = rule.encode(form, at)[0]
        total += rule.decode(sent, form)["delta"]
    step = float(v.abs().max()) / (2 ** (bits - 1) - 1)
    assert error(total / 4000, v) < 4 * step / math.sqrt(4 * 4000)
    assert sent["delta"]["levels"].dtype == torch.uint8
    assert len(sent["delta"]["levels"]) == math.ceil(11 * bits / 8)


def _client(client: int) -> ud.ClientAt:
    x = torch.zeros(11, dtype=torch.float64)
    return ud.ClientAt(x, {}, {}, 0.1, 1, 1, lambda: x, HookRandom(0, 1, client, ""))


def test_error_feedback_sends_everything_in_the_end() -> None:
    """The sum of what was sent and what is kept is the sum of all updates."""
    rule, at = ud.topk(0.2), _client(0)
    at.kept = {"e": torch.zeros(11, dtype=torch.float64)}
    total, received = torch.zeros(11, dtype=torch.float64), torch.zeros(11, dtype=torch.float64)
    for seed in range(9):
        delta = torch.randn(11, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        form = {"delta": delta, "up": {}}
        sent, kept = rule.encode(form, at)
        assert sent["delta"]["places"].dtype == torch.int32
        assert len(sent["delta"]["values"]) == 3
        total, received = total + delta, received + rule.decode(sent, form)["delta"]
        at.kept = kept
    assert error(received + at.kept["e"], total) < 1e-12
    assert error(received, total) > 0.1


def test_a_message_with_impossible_places_is_refused() -> None:
    rule = ud.topk(0.2)
    bad = {"values": torch.ones(3), "places": torch.tensor([0, 5, 11], dtype=torch.int32)}
    with pytest.raises(ud.RunError, match="must lie between 0 and 10"):
        rule.decode({"delta": bad, "up": {}}, {"delta": torch.zeros(11), "up": {}})


# Personal norm layers, against plain modules.


def test_norm_layers_stay_with_their_clients_and_the_rest_is_averaged() -> None:
    """FedBN: every client's own module with its own norm layer, the rest averaged, written out with plain SGD."""
    torch.manual_seed(3)
    start = nn.Sequential(nn.Linear(INPUTS, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, CLASSES)).double()
    clients = [pair for pair in PAIRS if len(pair[1]) % 4 != 1]
    result = ud.simulate(
        start, clients, ud.personal("norm"), rounds=5, cohort=2, batch_size=4, lr=0.2, seed=5, workers=0
    )
    shared = {"0.weight", "0.bias", "3.weight", "3.bias"}
    plan = Plan(rounds=5, cohort=2, batch_size=4, lr=0.2, seed=5)
    server, own = copy.deepcopy(start).state_dict(), [copy.deepcopy(start) for _ in clients]
    sent = {name: tensor for name, tensor in server.items() if name in shared}
    for t in range(1, 6):
        cohort = plan.cohort_of(t, len(clients))
        for i in cohort:
            own[i].load_state_dict(own[i].state_dict() | sent)
            for batch in plan.order(len(clients[i][1]), t, i):
                loss = nn.functional.cross_entropy(own[i](clients[i][0][batch]), clients[i][1][batch])
                gradients = torch.autograd.grad(loss, list(own[i].parameters()))
                with torch.no_grad():
                    for parameter, g in zip(own[i].parameters(), gradients, strict=True):
                        parameter.sub_(0.2 * g)
        sizes = np.array([len(clients[i][1]) for i in cohort], dtype=float)
        w = sizes / sizes.sum()
        sent = {
            name: torch.stack([a * own[i].state_dict()[name] for a, i in zip(w, cohort, strict=True)]).sum(0)
            for name in shared
        }
    found = result.model.state_dict()
    for name, tensor in server.items():
        assert error(found[name], sent[name] if name in shared else tensor) < 1e-9, name
    numbers = sum(start.state_dict()[name].numel() for name in shared)
    assert result.summary["bytes_up"] == result.summary["bytes_down"] == 5 * 2 * 8 * numbers


def test_clients_are_tested_with_their_own_layers() -> None:
    """Clients that call the same inputs by other names: only heads of their own can be right everywhere."""
    draw = torch.Generator().manual_seed(0)
    centres = 3 * torch.eye(4)
    clients = []
    for turn in range(4):
        kinds = torch.randint(4, (60,), generator=draw)
        clients.append((centres[kinds] + 0.3 * torch.randn(60, 4, generator=draw), (kinds + turn) % 4))
    torch.manual_seed(0)
    start = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
    settings: dict[str, Any] = {"rounds": 30, "batch_size": 10, "lr": 0.3, "client_test": 0.25, "eval_every": 30}
    runs = [ud.simulate(start, clients, ud.personal(1), workers=count, **settings) for count in (0, 2)]
    record = runs[0].history[-1]
    assert record["clients_accuracy"] > 0.9
    assert record["clients_accuracy_worst"] > 0.8
    assert record["clients_server_accuracy"] < 0.6
    plain = ud.simulate(start, clients, ud.fedavg(), workers=0, **settings).history[-1]
    assert plain["clients_accuracy"] < 0.6
    assert "clients_server_accuracy" not in plain
    assert {k: v for k, v in runs[1].history[-1].items() if k != "seconds"} == {
        k: v for k, v in record.items() if k != "seconds"
    }
