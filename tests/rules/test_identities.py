"""What must hold between algorithms and inside one, to the precision that the claim allows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import reference
import torch
from reference import Settings
from safetensors.torch import load_file
from test_closed_form import CASES, CLIENTS, HIDDEN, INPUTS, SERVER, SIZES, error, flat, module, tensors
from torch import Tensor, nn

import undrift as ud
from undrift.data.federation import from_clients
from undrift.engines.serial import Serial
from undrift.errors import ConfigError, RunError
from undrift.models.layers import Dropout
from undrift.rounds.client_states import ClientStates
from undrift.rounds.loop import Result, Run
from undrift.rounds.messages import Broadcast, ClientTask, Lost, Outcome
from undrift.rounds.plan import Plan
from undrift.rounds.prepare import prepare
from undrift.rounds.server_step import Server
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker
from undrift.rules.rule import Owns, Rule

Weighting = Literal["samples", "uniform"]

PAIRS = [tensors(c) for c in CLIENTS]
COMMON: dict[str, Any] = {
    "rounds": 6,
    "cohort": 3,
    "batch_size": 4,
    "lr": 0.2,
    "weight_decay": 0.01,
    "schedule": "cosine",
    "seed": 4,
    "local_epochs": 2,
    "server_data": tensors(SERVER),
    "test_data": tensors(SERVER),
    "workers": 0,
}


def dropout_model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(INPUTS, 6), nn.ReLU(), Dropout(0.25), nn.Linear(6, 5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 3)
    ).to(dtype)


def trained(rule: Rule, model: nn.Module | None = None, **changes: Any) -> Result:
    model = dropout_model(torch.float64) if model is None else model
    dtype = next(model.parameters()).dtype
    clients = [(x.to(dtype), y) for x, y in PAIRS]
    settings = {**COMMON, **changes}
    for key in ("server_data", "test_data"):
        settings[key] = (settings[key][0].to(dtype), settings[key][1])
    return ud.simulate(model, clients, rule, **settings)


def weights(result: Result) -> Tensor:
    assert result.server is not None
    return result.server.x


def same_bits(a: Result, b: Result) -> bool:
    without = [
        [{k: v for k, v in r.items() if k not in ("seconds", "bytes_down", "bytes_up")} for r in run.history]
        for run in (a, b)
    ]
    return torch.equal(weights(a), weights(b)) and without[0] == without[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("changes", [{}, {"weighting": "uniform", "server_lr": "sqrt", "local_steps": 5}])
def test_bit_for_bit(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    model = dropout_model(dtype)
    average, controlled = trained(ud.fedavg(), model, **changes), trained(ud.scaffold(), model, **changes)
    assert same_bits(trained(ud.fedpvr(0), model, **changes), average)
    assert same_bits(trained(ud.fedpvr([]), model, **changes), average)
    assert same_bits(trained(ud.fedpvr(3), model, **changes), controlled)
    assert same_bits(trained(ud.fedpvr(["6", "0", "3"]), model, **changes), controlled)
    assert not same_bits(controlled, average)
    assert same_bits(trained(ud.fsl(gamma=0.0), model, **changes), average)
    assert same_bits(trained(ud.fsl(gamma=0.0, incremental=False), model, **changes), average)
    assert same_bits(trained(ud.fsl(gamma=0.0, incremental=False, server_weight=0.5), model, **changes), average)
    assert same_bits(
        trained(ud.fedpvr(1) + ud.fsl(gamma=0.0), model, **changes), trained(ud.fedpvr(1), model, **changes)
    )
    assert same_bits(trained(ud.fedavg() + ud.fedavg(), model, **changes), average)


def test_without_weight_the_server_takes_no_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even steps at rate 0, which cost time and turn an infinite gradient into NaN."""
    monkeypatch.delattr(Worker, "learn")
    for rule in (ud.fsl(gamma=0.0), ud.fsl(gamma=0.0, incremental=False), ud.fedpvr(1) + ud.fsl(gamma=0.0)):
        trained(rule, rounds=2)
    trained(ud.fsl(gamma=0.0, incremental=False, server_weight=0.3), rounds=2)


def test_what_cannot_be_kept_to_layers_is_refused() -> None:
    for rule, name in ((ud.fsl(), "fsl"), (ud.ds(), "ds"), (ud.scaffold() + ud.fsl(), "fsl")):
        with pytest.raises(ConfigError, match=f"masked: '{name}'"):
            ud.masked(rule, 1)


def test_clients_draw_the_same_whatever_the_server_learns() -> None:
    """The clients' dropout masks and orders do not depend on the server's steps: only ``x`` does, from round 2 on."""
    plain, learning = trained(ud.fedavg()), trained(ud.fsl(steps=3))
    assert plain.history[1]["train_loss"] == learning.history[1]["train_loss"]
    assert plain.history[2]["train_loss"] != learning.history[2]["train_loss"]


@pytest.mark.parametrize("changes", [{}, {"weighting": "uniform", "schedule": "multistep", "milestones": [2]}])
@pytest.mark.parametrize("variant", ["heavyball", "nesterov"])
def test_to_rounding(variant: Literal["heavyball", "nesterov"], changes: dict[str, Any]) -> None:
    slow = weights(trained(ud.slowmo(beta=0.7, alpha=0.8), **changes))
    unembedded = ud.fedadc(beta=0.7, alpha=0.8, embed=0, variant=variant)
    assert error(weights(trained(unembedded, **changes)), slow) < 1e-12
    average = weights(trained(ud.fedavg(), **changes))
    assert error(weights(trained(ud.fedadc(beta=0, embed=0, variant=variant), **changes)), average) < 1e-12
    assert error(weights(trained(ud.slowmo(beta=0), **changes)), average) < 1e-12
    assert error(weights(trained(ud.fedprox(mu=0.0), **changes)), average) < 1e-12
    assert error(slow, average) > 1e-3


@pytest.mark.parametrize("embed", [0.0, 0.4, 0.7, 1.0])
def test_one_heavy_ball_step_is_slowmo(embed: float) -> None:
    one: dict[str, Any] = {"local_steps": 1}
    slow = trained(ud.slowmo(beta=0.7), **one)
    assert error(weights(trained(ud.fedadc(beta=0.7, embed=embed, variant="heavyball"), **one)), weights(slow)) < 1e-12
    if embed:
        assert error(weights(trained(ud.fedadc(beta=0.7, embed=embed), **one)), weights(slow)) > 1e-6


def test_tracking_changes_only_the_bytes() -> None:
    sent, tracked = trained(ud.fedadc(beta=0.7)), trained(ud.fedadc(beta=0.7, downlink="track"))
    assert same_bits(sent, tracked)
    assert sent.summary["bytes_down"] != tracked.summary["bytes_down"]


def kept(folder: Path) -> dict[int, dict[str, Tensor]]:
    files = json.loads((folder / "checkpoint" / "state.json").read_text())["clients"]
    return {int(client): load_file(folder / "checkpoint" / "clients" / name) for client, name in files.items()}


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize(
    "rule",
    [
        ud.scaffold(),
        ud.scaffold(option=1),
        ud.fedpvr(1),
        ud.feddyn(alpha=0.2),
        ud.scaffold() + ud.ds(),
        ud.feddyn(0.2) + ud.fsl(),
    ],
)
def test_the_servers_memory_is_the_weighted_sum_of_the_clients(
    rule: Rule, weighting: Weighting, tmp_path: Path
) -> None:
    result = trained(rule, rounds=9, weighting=weighting, out=tmp_path / "run")
    assert result.server is not None
    link, own = next((link, own) for link, own in result.server.state.items() if own)
    ((key, value),) = own.items()
    extra = len(SERVER[1]) if "Ds" in repr(rule) else 0
    n = np.array(SIZES, dtype=np.float64) + extra
    p = n / n.sum() if weighting == "samples" else np.full(len(n), 1 / len(n))
    total = torch.zeros_like(value)
    for client, memory in kept(tmp_path / "run").items():
        total += p[client] * memory[f"{link}/{key}"]
    assert error(value, total) < 1e-12
    assert error(value, 0) > 1e-3


@pytest.mark.parametrize("rule", [ud.scaffold(), ud.fedpvr(2), ud.feddyn(0.2)])
def test_a_client_that_was_not_drawn_keeps_what_it_has(rule: Rule, tmp_path: Path) -> None:
    """Memories after 8 rounds, against those after 7 rounds of the same run: only round 8's cohort differs."""
    runs = {rounds: trained(rule, rounds=rounds, schedule="constant", out=tmp_path / str(rounds)) for rounds in (7, 8)}
    before, after = kept(tmp_path / "7"), kept(tmp_path / "8")
    last = set(runs[8].rounds[-1]["clients"])
    assert set(after) == set(before) | last
    for client, memory in before.items():
        for path, value in memory.items():
            assert torch.equal(value, after[client][path]) == (client not in last)


class Watch:
    """Collects what clients sent."""

    def __init__(self) -> None:
        self.buffers: dict[int, list[tuple[float, Tensor]]] = {}
        self.server: dict[int, Tensor] = {}

    def begin(self, worker: Worker) -> None:
        pass

    def observe(self, round: int, outcome: Any, weight: float, x: Tensor) -> None:
        self.buffers.setdefault(round, []).append((weight, outcome.buffers.clone()))

    def report(self, round: int, server: Server) -> dict[str, Any]:
        self.server[round] = server.buffers.clone()
        return {}


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize(
    "rule",
    [
        ud.fedavg(),
        ud.scaffold(),
        ud.scaffold(option=1),
        ud.feddyn(0.2),
        ud.slowmo(),
        ud.fedadc(beta=0.5),
        ud.fsl(),
        ud.fedpvr(1) + ud.fsl(),
    ],
)
def test_buffers_are_the_plain_weighted_mean(rule: Rule, weighting: Weighting) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(INPUTS, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)).double()
    watch = Watch()
    owned = any(link.owns & {Owns.SERVER_STEP} for link in ud.chain(rule).links)
    clients = [pair for pair in PAIRS if len(pair[1]) > 4 and len(pair[1]) % 4 != 1]
    result = ud.simulate(
        model,
        clients,
        rule,
        rounds=4,
        cohort=2,
        batch_size=4,
        lr=0.1,
        seed=1,
        weighting=weighting,
        server_lr=1.0 if owned else "sqrt",
        server_data=tensors(SERVER),
        measures=[watch],
        workers=0,
    )
    for round, sent in watch.buffers.items():
        total = sum(weight for weight, _ in sent)
        assert len(sent) == 2
        assert error(watch.server[round], sum(weight * value / total for weight, value in sent)) < 1e-14
        assert error(watch.server[round], watch.server[round - 1]) > 1e-6
    size = sum(p.numel() for p in model.parameters())
    assert result.server is not None
    for own in result.server.state.values():
        assert all(value.numel() <= size for value in own.values())
    views = dict(result.model.named_buffers())
    assert error(torch.cat([views["1.running_mean"], views["1.running_var"]]), watch.server[4]) == 0


def test_buffers_of_a_first_round_by_hand() -> None:
    """Two clients, one batch each: running = 0.9 * start + 0.1 * batch statistics, then the weighted mean."""
    model = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 2)).double()
    a, b = torch.tensor([[1.0, 2.0], [3.0, 6.0]]), torch.tensor([[0.0, 1.0], [2.0, 1.0], [4.0, 4.0], [6.0, 2.0]])
    clients = [(part.double(), torch.zeros(len(part), dtype=torch.int64)) for part in (a, b)]
    result = ud.simulate(model, clients, ud.slowmo(beta=0.9), rounds=1, batch_size=0, lr=0.1, workers=0)
    mean = 0.1 * (2 * torch.tensor([2.0, 4.0]) + 4 * torch.tensor([3.0, 2.0])) / 6
    var = 0.9 + 0.1 * (2 * torch.tensor([2.0, 8.0]) + 4 * torch.tensor([20 / 3, 2.0])) / 6
    views = dict(result.model.named_buffers())
    assert error(views["0.running_mean"], mean) < 1e-7
    assert error(views["0.running_var"], var) < 1e-7


class Flaky:
    """An engine that loses chosen clients in chosen rounds, after they have done their work."""

    eager = True

    def __init__(self, work: Work, worker: Worker, lost: dict[int, set[int]]) -> None:
        self.inner, self.lost = Serial(work, worker), lost

    def clients(self, cast: Broadcast, jobs: Sequence[ClientTask]) -> Iterator[Outcome | Lost]:
        for out in self.inner.clients(cast, jobs):
            assert isinstance(out, Outcome)
            yield Lost(out.client, "no answer") if out.client in self.lost.get(cast.round, ()) else out

    def evaluate(self, x: Tensor, buffers: Tensor) -> Any:
        return self.inner.evaluate(x, buffers)

    def close(self) -> None:
        self.inner.close()


def work_for(rule: Rule, model: nn.Module, settings: Settings) -> Work:
    plan = Plan(
        rounds=settings.rounds,
        lr=settings.lr,
        schedule="cosine",
        cohort=settings.cohort,
        batch_size=settings.batch_size,
        server_lr=settings.server_lr,
        weight_decay=settings.weight_decay,
        weighting=settings.weighting,
        seed=settings.seed,
    )
    federation = from_clients(PAIRS, server=tensors(SERVER))
    return prepare(model, rule, federation, plan, nn.functional.cross_entropy, "cpu")


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold-2", "feddyn", "fedadc-nesterov-1-send", "fsl", "fedpvr+fsl"])
def test_lost_clients_count_for_nothing(name: str, weighting: Weighting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same as rounds in which only those that answered were drawn, state and server rate included."""
    rule, algorithm, _ = CASES[name]
    owned = {"feddyn", "fedadc"} & set(algorithm)
    settings = Settings(rounds=5, weighting=weighting, server_lr=1.0 if owned else "sqrt")
    drawn = reference.cohort_of
    lost = {t: {drawn(t, len(SIZES), settings)[t % 3]} for t in (1, 3, 4)}
    monkeypatch.setattr(reference, "cohort_of", lambda t, N, s: [i for i in drawn(t, N, s) if i not in lost.get(t, ())])
    model = module(HIDDEN)
    net = reference.Net(INPUTS, HIDDEN, 3)
    expected = reference.run(net, flat(model), CLIENTS, SERVER, settings, algorithm)
    stores: list[ClientStates] = []
    original = ClientStates.__init__

    def remembered(self: ClientStates, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        stores.append(self)

    monkeypatch.setattr(ClientStates, "__init__", remembered)
    work = work_for(rule, model, settings)
    result = Run(work, make_engine=lambda work, worker, _: Flaky(work, worker, lost)).go()
    assert error(weights(result), expected.x) < 1e-9
    for line in result.rounds:
        gone = sorted(lost.get(line["round"], ()))
        assert [item["client"] for item in line["lost"]] == gone
        assert all(item["reason"] == "no answer" for item in line["lost"])
        assert line["clients"] == drawn(line["round"], len(SIZES), settings)
    mask = algorithm.get("fedpvr", {}).get("mask", np.ones_like(expected.x)) != 0
    memories = expected.c_i or expected.h_i
    assert len(stores[0]) == len(memories)
    for client in range(len(SIZES)):
        found = stores[0].get(client)
        assert (found is not None) == (client in memories)
        if found is not None:
            (value,) = (v for own in found.values() for v in own.values())
            assert error(value, memories[client][mask]) < 1e-9


def test_a_round_without_answers_ends_the_run() -> None:
    work = work_for(ud.scaffold(), module(0), Settings())
    everyone = {2: set(range(len(SIZES)))}
    with pytest.raises(RunError, match=r"round 2: no client was heard from \(client \d: no answer; "):
        Run(work, make_engine=lambda work, worker, _: Flaky(work, worker, everyone)).go()
