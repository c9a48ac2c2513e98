"""What a split round sends, in which order, with which gradients; how rules act in it; what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from splitting import SPLITS, clients, gap, net, run
from torch import Tensor, nn

import undrift as ud
from undrift.core.schedule import Schedule
from undrift.core.vector import FlatModel
from undrift.data.federation import from_clients
from undrift.engines.auto import engine_for
from undrift.engines.serial import Serial
from undrift.errors import ConfigError, DivergedError
from undrift.experiment.config import parse
from undrift.experiment.run_folder import RunFolder
from undrift.rounds.client_states import ClientStates
from undrift.rounds.loop import Result, Run
from undrift.rounds.messages import Broadcast
from undrift.rounds.plan import Plan
from undrift.rounds.prepare import prepare
from undrift.rounds.server_step import Server
from undrift.rounds.split.client import blurred
from undrift.rounds.split.main_server import MainServer
from undrift.rounds.split.messages import Gradient, Smashed
from undrift.rounds.split.noise import Noise
from undrift.rounds.split.parts import SplitParts
from undrift.rounds.split.rounds import SplitRounds, timetable
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker
from undrift.rules import named

SIZES = (3, 12, 8, 7)
DATA = clients((4,), SIZES)
Split = Callable[..., ud.Rule]


def vector(result: Result) -> Tensor:
    assert result.server is not None
    return result.server.x


def main_server(model: nn.Sequential, *, faithful: bool) -> MainServer:
    """A main server whose part is ``model``, behind a client's layer of the same width."""
    algorithm = ud.minibatch_sfl(cut="0", faithful=faithful)
    whole = nn.Sequential(nn.Linear(4, 4).double(), *model)
    plan = Plan(rounds=1, lr=0.1)
    worker = Worker(prepare(whole, algorithm, from_clients(DATA), plan, nn.functional.cross_entropy, "cpu"))
    server = MainServer(SplitParts(worker, algorithm))
    server.begin(1)
    server.open(Broadcast(1, 0.1, worker.model.weights.clone(), worker.model.buffers.clone(), {}))
    return server


def messages(sizes: Sequence[int]) -> list[Smashed]:
    return [Smashed(n, z, y, Noise(n).state) for n, (z, y) in enumerate(clients((4,), sizes))]


@pytest.mark.parametrize("faithful", [False, True])
def test_the_gradient_sent_to_a_client_does_not_carry_its_weight(faithful: bool) -> None:
    """Weights 1 : 999: each client gets the gradient of its own mean loss, and the server steps with the weights."""
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    server, sent, q = main_server(model, faithful=faithful), messages((2, 5)), (0.001, 0.999)
    before = server.weights.clone()
    gradients = server.step(sent, q, lr=0.5)
    total = torch.zeros_like(before)
    for message, gradient, weight in zip(sent, gradients, q, strict=True):
        z = message.z.clone().requires_grad_()
        own = nn.functional.cross_entropy(model(z), message.labels)
        found = torch.autograd.grad(own, [z, *model.parameters()])
        assert gradient.loss == pytest.approx(own.item(), abs=1e-14)
        torch.testing.assert_close(gradient.dz, found[0], rtol=0, atol=1e-14)
        total += weight * torch.cat([g.flatten() for g in found[1:]])
    torch.testing.assert_close(server.weights, before - 0.5 * total, rtol=0, atol=1e-14)


def test_with_batch_norm_the_cohort_is_one_batch() -> None:
    """``(1/q_n) d/dz_n sum_m q_m h_m`` where the statistics are those of all rows together."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    sent, q = messages((2, 5)), torch.tensor([0.2, 0.8], dtype=torch.float64)
    gradients = main_server(model, faithful=True).step(sent, q.tolist(), lr=0.5)
    z = torch.cat([m.z for m in sent]).requires_grad_()
    normed = (z - z.mean(0)) / (z.var(0, correction=0) + 1e-5).sqrt()
    out = model[1](normed)
    joint = q[0] * nn.functional.cross_entropy(out[:2], sent[0].labels)
    joint = joint + q[1] * nn.functional.cross_entropy(out[2:], sent[1].labels)
    (dz,) = torch.autograd.grad(joint, [z])
    torch.testing.assert_close(gradients[0].dz, dz[:2] / q[0], rtol=0, atol=1e-13)
    torch.testing.assert_close(gradients[1].dz, dz[2:] / q[1], rtol=0, atol=1e-13)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("rules", [(), (ud.scaffold(),)], ids=["plain", "scaffold"])
def test_messages_one_by_one_and_as_one_batch_agree(norm: bool, rules: tuple[ud.Rule, ...]) -> None:
    for split in SPLITS:
        results = [
            run(net(norm=norm), DATA, ud.chain(split(cut=1, faithful=faithful), *rules), cohort=3)
            for faithful in (False, True)
        ]
        assert gap(*results) < 1e-12
        sent = [[(r["bytes_down"], r["bytes_up"]) for r in result.history] for result in results]
        assert sent[0] == sent[1]


def test_bytes_are_those_of_the_messages() -> None:
    """Cut 1 of 4-6-5-3: 30 numbers at the client, 6 smashed numbers a sample; float64; labels of 8 bytes."""
    visits = 2 * sum(SIZES)
    for split in SPLITS:
        record = run(net(), DATA, split(cut=1)).history[1]
        assert record["bytes_down"] == 4 * 30 * 8 + visits * 6 * 8
        assert record["bytes_up"] == 4 * 30 * 8 + visits * (6 * 8 + 8)
    controlled = run(net(), DATA, ud.minibatch_sfl(cut=1) + ud.scaffold()).history[1]
    assert controlled["bytes_down"] == 2 * 4 * 30 * 8 + visits * 6 * 8
    full = run(net(), DATA, ud.sfl_v1(cut=1) + ud.scaffold(option=1)).history[1]
    assert full["bytes_down"] == 2 * 4 * 30 * 8 + (visits + sum(SIZES)) * 6 * 8
    twice = run(net(), DATA, ud.minibatch_sfl(cut=1, sync_steps=3)).history[1]
    # Epochs of 3 steps: clients with 1, 3, 2, 2 batches all act in both periods.
    assert twice["bytes_down"] == 2 * 4 * 30 * 8 + visits * 6 * 8


def orders(monkeypatch: pytest.MonkeyPatch, algorithm: ud.Rule, **changes: Any) -> list[int]:
    seen: list[int] = []
    step = MainServer.step

    def watched(self: MainServer, sent: Sequence[Smashed], *rest: Any, **more: Any) -> list[Gradient]:
        seen.extend(message.client for message in sent)
        return step(self, sent, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(MainServer, "step", watched)
        run(net(), clients((4,), (4,) * 6), algorithm, **({"local_epochs": 1} | changes))
    return seen


def test_sfl_v2_sees_clients_in_a_random_order_of_the_seed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    first = orders(monkeypatch, ud.sfl_v2())
    assert sorted(first[:6]) == sorted(first[6:]) == list(range(6))
    assert first[:6] != first[6:], "drawn again each round"
    assert first[:6] != list(range(6))
    for same in (
        orders(monkeypatch, ud.sfl_v2(cut=2, order="step", main_lr=1.0) + ud.scaffold()),
        orders(monkeypatch, ud.sfl_v2(), lr=0.3, weighting="uniform", batch_size=7),
    ):
        assert same == first
    assert orders(monkeypatch, ud.sfl_v2(), seed=4) != first


def test_sfl_v2_lets_a_client_finish_or_alternates(monkeypatch: pytest.MonkeyPatch) -> None:
    by_client = orders(monkeypatch, ud.sfl_v2(), batch_size=2, rounds=1)
    by_step = orders(monkeypatch, ud.sfl_v2(order="step"), batch_size=2, rounds=1)
    assert by_client == [client for client in by_step[:6] for _ in range(2)]
    assert by_step[:6] == by_step[6:]


RULES = (
    ud.fedprox(0.3),
    ud.scaffold(),
    ud.scaffold(option=1),
    ud.feddyn(0.2),
    ud.slowmo(0.5),
    ud.fedadc(0.5),
    ud.fedadc(0.5, variant="heavyball"),
    ud.fedprox(0.3) + ud.scaffold() + ud.slowmo(0.5),
)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules_act_on_the_clients_part_as_on_a_whole_model(rule: ud.Rule) -> None:
    """SFL-V1 with a rule is FedAvg with that rule on the client's layers only."""
    links = rule.links if isinstance(rule, ud.Chain) else (rule,)
    masked = ud.chain(*(ud.masked(link, ["0", "4"]) for link in links))
    full = run(net(), DATA, masked, cohort=3, rounds=3)
    for faithful in (False, True):
        split = run(net(), DATA, ud.chain(ud.sfl_v1(cut=2, faithful=faithful), rule), cohort=3, rounds=3)
        assert gap(split, full) < 1e-12


def test_fedpvr_counts_layers_of_the_clients_part() -> None:
    split = run(net(), DATA, ud.sfl_v1(cut=2) + ud.fedpvr(layers=1))
    assert gap(split, run(net(), DATA, ud.fedpvr(layers=["4"]))) < 1e-12


@pytest.mark.parametrize("split", [ud.sfl_v2, ud.minibatch_sfl])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_rules_leave_their_mark_with_a_shared_server_part(split: Split, rule: ud.Rule) -> None:
    plain = run(net(), DATA, split(cut=1), cohort=3, rounds=3)
    controlled = run(net(), DATA, ud.chain(split(cut=1), rule), cohort=3, rounds=3)
    assert 1e-6 < gap(plain, controlled) < 10
    assert gap(run(net(), DATA, ud.chain(split(cut=1), ud.fedprox(0.0))), run(net(), DATA, split(cut=1))) == 0


def test_the_servers_variate_is_the_mean_of_the_clients() -> None:
    """``c = sum_i p_i c_i`` over the client's part, with several synchronisations a round too."""
    for split in (ud.minibatch_sfl(cut=1), ud.minibatch_sfl(cut=1, sync_steps=2), ud.sfl_v2(cut=1)):
        work = worked(ud.chain(split, ud.scaffold()))
        worker = Worker(work)
        x = worker.model.weights.clone()
        store, server = ClientStates(work.rule.init_client(x)), Server(x, worker.model.buffers.clone(), {})
        server.state = work.rule.init_server(x)
        rounds = SplitRounds(work, Serial(work, worker), store, worker)
        for round in range(1, 4):
            server, _ = rounds.run(round, server)
        kept = [(store.get(client) or work.rule.init_client(x))["scaffold"]["c"] for client in range(4)]
        mean = sum(n * c for n, c in zip(SIZES, kept, strict=True)) / sum(SIZES)
        assert isinstance(mean, Tensor)
        assert mean.shape == (42,)
        torch.testing.assert_close(server.state["scaffold"]["c"], mean, rtol=0, atol=1e-13)


def test_server_learning_acts_on_the_whole_model_after_synchronisation() -> None:
    x0, y0 = clients((4,), (6,), seed=9)[0]
    options: dict[str, Any] = {"server_data": (x0, y0), "rounds": 1}
    model = net(dropout=False)
    for split in SPLITS:
        plain = run(model, DATA, split(cut=1), **options)
        learnt = run(model, DATA, ud.chain(split(cut=1), ud.fsl(lr=0.5, steps=1, batch_size=0)), **options)
        loss = nn.functional.cross_entropy(plain.model(x0), y0)
        gradient = torch.autograd.grad(loss, list(plain.model.parameters()))
        step = torch.cat([g.flatten() for g in gradient])
        torch.testing.assert_close(vector(learnt), vector(plain) - 0.5 * step, rtol=0, atol=1e-12)
        shared = run(model, DATA, ud.chain(split(cut=1), ud.ds()), **options)
        assert shared.history[1]["bytes_down"] - plain.history[1]["bytes_down"] == 4 * 6 * (4 * 8 + 8 + 2 * 6 * 8)


def test_the_fed_servers_rate_acts_on_what_it_averages() -> None:
    model = net()
    start = FlatModel(model).weights
    one = vector(run(model, DATA, ud.minibatch_sfl(cut=1), rounds=1))
    half = vector(run(model, DATA, ud.minibatch_sfl(cut=1), rounds=1, server_lr=0.5))
    torch.testing.assert_close(half[:30], start[:30] + 0.5 * (one - start)[:30], rtol=0, atol=1e-14)
    assert torch.equal(half[30:], one[30:])


def test_clients_with_fewer_batches_stop_earlier() -> None:
    seen: list[tuple[int, ...]] = []
    plan = Plan(rounds=1, lr=0.1, local_epochs=2, batch_size=4)
    table = timetable([3, 0, 1], plan, {3: 7, 0: 3, 1: 12})
    for period in table.periods(4):
        seen.extend(ud.minibatch_sfl().turns(table, period, []))
    assert seen == [(3, 0, 1), (3, 1), (1,)] * 2
    assert [len(period) for period in table.periods(4)] == [4, 2]


def test_the_main_servers_rate_follows_the_clients_or_its_own_schedule() -> None:
    rates = Schedule(0.1, "multistep", milestones=(2,))
    assert ud.sfl_v2(main_lr=0.4).main_rate(rates, 3, 5) == pytest.approx(0.04)
    assert ud.sfl_v2().main_rate(rates, 3, 5) == rates.at(3, 5)
    assert ud.sfl_v2(main_lr=0.4, main_schedule="constant").main_rate(rates, 3, 5) == 0.4
    own = ud.sfl_v2(main_schedule="multistep", main_milestones=(1,), main_decay=0.5)
    assert own.main_rate(rates, 2, 5) == 0.05


def test_noise_on_smashed_data_is_relative_and_of_the_seed() -> None:
    z = 7 * torch.randn(200, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noise = blurred(z, 0.1, torch.Generator().manual_seed(1)) - z
    assert float(noise.std()) == pytest.approx(0.7, rel=0.05)
    for split in SPLITS:
        plain = run(net(), DATA, split(cut=1))
        noisy = run(net(), DATA, split(cut=1, smashed_noise=0.5))
        assert gap(plain, noisy) > 1e-4
        assert gap(noisy, run(net(), DATA, split(cut=1, smashed_noise=0.5))) == 0


def worked(algorithm: ud.Rule) -> Work:
    plan = Plan(rounds=4, lr=0.1, cohort=3, local_epochs=2, batch_size=4, seed=3)
    return prepare(net(norm=True), algorithm, from_clients(DATA), plan, nn.functional.cross_entropy, "cpu")


class StopError(Exception):
    """A run's sudden end."""


@pytest.mark.parametrize(
    "algorithm",
    [
        ud.sfl_v1() + ud.scaffold(),
        ud.sfl_v2(smashed_noise=0.2) + ud.scaffold(),
        ud.minibatch_sfl(sync_steps=2) + ud.scaffold(),
        ud.minibatch_sfl() + ud.fedadc(),
    ],
    ids=str,
)
def test_an_interrupted_run_ends_in_the_same_bits(algorithm: ud.Rule, tmp_path: Path) -> None:
    def stop(round: int, *_: Any) -> None:
        if round == 2:
            raise StopError

    whole = Run(worked(algorithm), engine_for, 0).go()
    settings = {"algorithm": "split"}
    with pytest.raises(StopError):
        Run(
            worked(algorithm),
            engine_for,
            0,
            folder=RunFolder(tmp_path / "run", settings, resume=False),
            progress=stop,
            checkpoint_seconds=0.0,
        ).go()
    again = Run(worked(algorithm), engine_for, 0, folder=RunFolder(tmp_path / "run", settings, resume=True)).go()
    assert again.server is not None
    assert whole.server is not None
    assert torch.equal(again.server.x, whole.server.x)
    assert torch.equal(again.server.buffers, whole.server.buffers)
    sent = [[(r["round"], r["bytes_down"], r["bytes_up"]) for r in result.history] for result in (whole, again)]
    assert sent[0] == sent[1]


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    model[2].weight = model[0].weight
    return model


class Plain(nn.Module):
    """Not a sequence of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


@pytest.mark.parametrize(
    ("make", "model", "message"),
    [
        (lambda: ud.sfl_v1(cut=3), net(), "sfl-v1.cut = 3 of 3 blocks; allowed: 1 to 2"),
        (lambda: ud.sfl_v1(cut=0), net(), "at least 1 block"),
        (lambda: ud.sfl_v2(cut="8"), net(), "leaves the server without parameters"),
        (lambda: ud.sfl_v2(cut="conv"), net(), "'conv' is not a layer"),
        (lambda: ud.minibatch_sfl(cut=1), tied(), "share a tensor"),
        (lambda: ud.minibatch_sfl(cut=1), Plain().double(), "only an nn.Sequential can be cut, not Plain"),
        (lambda: ud.minibatch_sfl(main_lr=0.0), net(), "main_lr = 0.0"),
        (lambda: ud.minibatch_sfl(sync_steps=0), net(), "sync_steps = 0"),
        (lambda: ud.minibatch_sfl(smashed_noise=-1.0), net(), "smashed_noise = -1.0"),
        (lambda: ud.sfl_v2(order="epoch"), net(), "'client' or 'step'"),  # type: ignore[arg-type]
        (lambda: ud.sfl_v1() + ud.sfl_v2(), net(), "both own the kind of round"),
        (lambda: ud.sfl_v1() + ud.centralised(), net(), "no rounds between clients"),
        (lambda: ud.minibatch_sfl() + ud.scaffold() + ud.feddyn(), net(), "both own the correction"),
        (lambda: ud.minibatch_sfl() + ud.fedpvr(layers=2), net(), "acts on the clients' part"),
        (lambda: ud.minibatch_sfl() + ud.fsl(incremental=False, server_weight=0.5), net(), "server_weight"),
        (lambda: ud.minibatch_sfl() + ud.fsl(), net(), "needs server data"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Callable[[], ud.Rule], model: nn.Module, message: str) -> None:
    server = DATA[0] if "server_weight" in message else None
    with pytest.raises(ConfigError, match=message):
        run(model, DATA, make(), server_data=server)


def test_another_server_rate_is_refused_with_an_owner_of_the_server_step() -> None:
    with pytest.raises(ConfigError, match="'slowmo' owns the server step"):
        run(net(), DATA, ud.sfl_v2() + ud.slowmo(), server_lr=0.5)


def test_names_in_configurations() -> None:
    parameters: dict[str, dict[str, Any]] = {"minibatch-sfl": {"cut": 2}, "fedprox": {"mu": 0.1}}
    assert named("minibatch-sfl+fedprox", parameters) == ud.minibatch_sfl(cut=2) + ud.fedprox(0.1)
    with pytest.raises(ConfigError, match="did you mean 'sync_steps'"):
        parse({"algorithm": {"name": "sfl-v2", "sfl-v2": {"sync_step": 3}}})
    with pytest.raises(ConfigError, match=r"algorithm\.sfl-v2\.order"):
        parse({"algorithm": {"name": "sfl-v2", "sfl-v2": {"order": "epoch"}}})


def test_divergence_is_said() -> None:
    with pytest.raises(DivergedError, match="round 1"):
        run(net(), [(1e200 * x, y) for x, y in DATA], ud.minibatch_sfl(main_lr=1e200))


@pytest.mark.parametrize("rule", [ud.fedadc(0.5), ud.scaffold()], ids=str)
def test_a_large_cohort_makes_forward_passes_again_with_the_same_bits(
    rule: ud.Rule, monkeypatch: pytest.MonkeyPatch
) -> None:
    for norm in (False, True):
        kept = run(net(norm=norm), DATA, ud.minibatch_sfl(cut=2, smashed_noise=0.1) + rule)
        with monkeypatch.context() as patch:
            patch.setattr("undrift.rounds.split.parties.MEMORY", 0)
            again = run(net(norm=norm), DATA, ud.minibatch_sfl(cut=2, smashed_noise=0.1) + rule)
        assert gap(kept, again) == 0
