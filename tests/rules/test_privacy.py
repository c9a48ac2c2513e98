"""Differential privacy: what one client can change, the noise, the epsilon, and an audit that can fail."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import beta as beta_distribution
from torch import Tensor, nn

import undrift as ud
from undrift.core.streams import HookRandom
from undrift.core.tree import Tree, flatten
from undrift.data.federation import from_clients
from undrift.engines.auto import engine_for
from undrift.experiment.run_folder import RunFolder
from undrift.rounds.loop import Run
from undrift.rounds.plan import Plan
from undrift.rounds.prepare import prepare
from undrift.rules.accounting import by_loss, by_renyi, epsilon, noise_for
from undrift.rules.privacy import Dp, length

accounting = pytest.importorskip("dp_accounting")
DRAW = torch.Generator().manual_seed(3)
CLIENTS = [(torch.randn(n, 4, generator=DRAW).double(), torch.arange(n) % 3) for n in (6, 9, 12, 7, 5)]


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def run(rule: ud.Rule, **settings: Any) -> ud.Result:
    usual: dict[str, Any] = {"rounds": 4, "cohort": 2, "batch_size": 4, "lr": 0.1, "workers": 0, "weighting": "uniform"}
    return ud.simulate(net(), CLIENTS, rule, server_data=CLIENTS[0], **(usual | settings))


@dataclass(frozen=True)
class Adversary(ud.Rule):
    """Sends huge messages, and makes its update huge."""

    name = "adversary"

    def gradient(self, g: Tensor, y: Tensor, at: ud.ClientAt) -> None:
        g.mul_(1e6)

    def up(self, delta: Tensor, at: ud.ClientAt) -> tuple[Tree, Tree]:
        return {"large": 1e5 * torch.ones_like(delta), "small": torch.full_like(delta[:2], -1e-3)}, {}


class Watch:
    """The length of what each client's update and messages count for."""

    def __init__(self) -> None:
        self.lengths: list[float] = []

    def begin(self, worker: Any) -> None: ...

    def observe(self, round: int, outcome: Any, weight: float, x: Tensor) -> None:
        assert weight == 1.0
        self.lengths.append(length({"delta": outcome.delta, "up": outcome.up}))

    def report(self, round: int, server: Any) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    "rule",
    [
        Adversary() + ud.dp(0.7, 1.0),
        Adversary() + ud.scaffold() + ud.dp(0.7, 1.0),
        Adversary() + ud.topk(0.3) + ud.quantise(2) + ud.dp(0.7, 1.0),
        ud.attack("sign-flip", 1.0, 1e4) + ud.dp(0.7, 1.0),
    ],
    ids=["plain", "scaffold", "compressed", "attack"],
)
def test_no_client_changes_a_sum_by_more_than_the_clip(rule: ud.Rule) -> None:
    watch = Watch()
    run(rule, measures=[watch], rounds=6)
    assert len(watch.lengths) > 5
    assert max(watch.lengths) <= 0.7 * (1 + 1e-12)
    assert max(watch.lengths) > 0.7 * (1 - 1e-6)


def test_a_client_clips_update_and_messages_together_before_it_sends_them() -> None:
    sent: Tree = {"delta": torch.full((9,), 1.0), "up": {"scaffold": {"dc": torch.full((16,), -1.0)}}}
    at = ud.ClientAt(sent["delta"], {}, {}, 0.1, 1, 1, lambda: sent["delta"], HookRandom(0, 1, 0, "dp"))
    clipped, kept = ud.dp(0.5).encode(sent, at)
    assert torch.allclose(clipped["delta"], torch.full((9,), 0.1))  # 0.5 / sqrt(9 + 16)
    assert torch.allclose(clipped["up"]["scaffold"]["dc"], torch.full((16,), -0.1))
    assert kept == {}


def test_a_client_that_does_not_clip_is_clipped_by_the_server() -> None:
    sent: Tree = {"delta": torch.full((50,), 3.0), "up": {"x": {"a": torch.ones(2)}}}
    taken = ud.dp(0.7).receive(sent)
    assert length(taken) == pytest.approx(0.7)
    assert torch.allclose(taken["delta"] / taken["up"]["x"]["a"][0], sent["delta"])
    short: Tree = {"delta": torch.full((4,), 0.1), "up": {}}
    assert ud.dp(0.7).receive(short) is short


def test_the_noise_has_its_variance_and_is_new_in_every_round_and_vector() -> None:
    rule, sums = ud.dp(clip=0.5, noise=1.6), {"delta": torch.zeros(20_000), "up": {"c": torch.zeros(20_000)}}
    drawn = [flatten(rule.release(sums, HookRandom(0, t, None, "dp"))) for t in (1, 2, 3)]
    vectors = [vector.double() for one in drawn for vector in one.values()]
    for vector in vectors:
        assert float(vector.std()) == pytest.approx(0.8, rel=0.02)  # 4 standard deviations: 0.8 * 4/sqrt(40000)
        assert abs(float(vector.mean())) < 4 * 0.8 / math.sqrt(20_000)
    correlations = np.corrcoef(np.stack([vector.numpy() for vector in vectors])) - np.eye(len(vectors))
    assert np.abs(correlations).max() < 5 / math.sqrt(20_000)
    assert torch.equal(drawn[0]["delta"], rule.release(sums, HookRandom(0, 1, None, "dp"))["delta"])


def test_clients_are_drawn_independently_with_their_probability() -> None:
    lines = run(ud.dp(1.0, 5.0), rounds=300, eval_every=300, lr=1e-3).rounds
    counts = np.array([len(line["clients"]) for line in lines])
    drawn = np.bincount([client for line in lines for client in line["clients"]], minlength=5)
    assert (np.abs(drawn - 120) < 4 * math.sqrt(300 * 0.4 * 0.6)).all()
    assert abs(counts.var() - 5 * 0.4 * 0.6) < 0.4  # a fixed number has none
    assert (counts == 0).sum() > 5  # 300 * 0.6^5 = 23 rounds without anybody, each as noisy as any other


def test_a_round_of_nobody_is_a_noisy_round() -> None:
    result = run(ud.dp(0.5, 2.0), rounds=6, cohort=1, seed=2)
    nobody = [line["round"] for line in result.rounds if not line["clients"]]
    assert nobody
    record = next(record for record in result.history if record["round"] == nobody[0])
    assert record["train_loss"] is None
    assert record["bytes_up"] == record["bytes_down"] == 0
    before = run(ud.dp(0.5, 2.0), rounds=nobody[0] - 1, cohort=1, seed=2)
    after = run(ud.dp(0.5, 2.0), rounds=nobody[0], cohort=1, seed=2)
    assert before.server is not None
    assert after.server is not None
    noise = torch.randn(51, generator=HookRandom(2, nobody[0], None, "dp").generator("delta"), dtype=torch.float64)
    assert torch.allclose(after.server.x - before.server.x, noise * 2.0 * 0.5 / 1, atol=1e-12)


# Epsilon.


@pytest.mark.parametrize(("cohort", "noise", "rounds"), [(2, 1.0, 4), (5, 2.0, 3), (1, 0.6, 7)])
def test_epsilon_is_the_accountants(cohort: int, noise: float, rounds: int) -> None:
    result = run(ud.dp(1.0, noise, delta=1e-3), cohort=cohort, rounds=rounds, eval_every=3)
    event = accounting.PoissonSampledDpEvent(cohort / 5, accounting.GaussianDpEvent(noise))
    from dp_accounting import pld, rdp

    for record in result.history[1:]:
        found = []
        for kind in (rdp.RdpAccountant, pld.PLDAccountant):
            accountant = kind(neighboring_relation=accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
            accountant.compose(event, record["round"])
            found.append(accountant.get_epsilon(1e-3))
        assert record["epsilon"] == pytest.approx(min(found), rel=1e-3)
        assert record["delta"] == 1e-3
    assert "epsilon" not in run(ud.fedavg()).history[-1]


def test_what_the_server_does_with_noised_sums_costs_nothing() -> None:
    plain = run(ud.dp(1.0, 1.0)).history[-1]["epsilon"]
    for rule in (ud.fedadc() + ud.fsl() + ud.dp(1.0, 1.0), ud.scaffold() + ud.dp(1.0, 1.0)):
        assert run(rule).history[-1]["epsilon"] == plain


def test_noise_for_an_epsilon() -> None:
    noise = noise_for(0.2, 3.0, 1e-3, 20)
    assert epsilon(0.2, noise, 1e-3, 20) <= 3.0 < epsilon(0.2, 0.995 * noise, 1e-3, 20)
    assert by_loss(0.2, noise, 1e-3, 20) < by_renyi(0.2, noise, 1e-3, 20)


def test_a_run_ends_before_its_budget_is_passed(tmp_path: Path) -> None:
    free = run(ud.dp(1.0, 1.0, 1e-3), rounds=8, eval_every=3)
    budget = epsilon(0.4, 1.0, 1e-3, 5) + 1e-6
    result = run(ud.dp(1.0, 1.0, 1e-3, budget), rounds=8, eval_every=3, out=tmp_path / "run")
    assert result.summary["rounds"] == 5 == result.rounds[-1]["round"]
    assert [record["round"] for record in result.history] == [0, 3, 5]
    assert result.history[-1]["epsilon"] <= budget < epsilon(0.4, 1.0, 1e-3, 6)
    assert (tmp_path / "run" / "summary.json").exists()
    assert free.summary["rounds"] == 8
    again = run(ud.dp(1.0, 1.0, 1e-3, budget), rounds=8, eval_every=3, out=tmp_path / "run", resume=True)
    assert again.server is not None
    assert result.server is not None
    assert torch.equal(again.server.x, result.server.x)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_noise_after_an_interruption(workers: int, tmp_path: Path) -> None:
    rule = ud.scaffold() + ud.topk(0.3) + ud.dp(0.5, 0.8)
    plan = Plan(rounds=5, lr=0.1, cohort=2, batch_size=4, weighting="uniform")
    work = prepare(net(), rule, from_clients(CLIENTS), plan, nn.functional.cross_entropy)
    whole = Run(work, engine_for, 0).go()

    class CutError(Exception): ...

    def cut(round: int, rounds: int, record: Any) -> None:
        if round == 3:
            raise CutError

    first = Run(work, engine_for, workers, folder=RunFolder(tmp_path / "cut", {}, resume=False), progress=cut)
    first.checkpoint_seconds = -1.0
    with pytest.raises(CutError):
        first.go()
    resumed = Run(work, engine_for, workers, folder=RunFolder(tmp_path / "cut", {}, resume=True)).go()
    assert whole.server is not None
    assert resumed.server is not None
    assert torch.equal(whole.server.x, resumed.server.x)


# What is refused.


def test_what_would_leave_clients_unprotected_is_refused() -> None:
    norm = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double()
    with pytest.raises(ud.ConfigError, match="running statistics of the clients' data unprotected"):
        ud.simulate(norm, CLIENTS, ud.dp(), weighting="uniform", rounds=1, drop_last=True)
    with pytest.raises(ud.ConfigError, match=r"train.weighting = 'samples': 'dp' counts every client alike"):
        run(ud.dp(), weighting="samples")
    for other, reason in (
        (ud.ds(), "hands out samples"),
        (ud.sfl_v2(), "activations and labels"),
        (ud.median(), "both own how updates are aggregated"),
        (ud.choice(), "both own who takes part"),
        (ud.fednova(), "clipped and noised"),
    ):
        with pytest.raises(ud.ConfigError, match=reason):
            ud.dp() + other
    with pytest.raises(ud.ConfigError, match=r"'dp' and 'topk' cannot be combined: .*topk\+dp is allowed"):
        ud.dp() + ud.topk()
    with pytest.raises(ud.ConfigError, match=r"'dp' and 'quantise' cannot be combined: .*quantise\+dp is allowed"):
        ud.dp() + ud.quantise()


@pytest.mark.parametrize("bad", [{"clip": 0.0}, {"noise": -1.0}, {"delta": 0.0}, {"delta": 1.0}, {"budget": 0.0}])
def test_impossible_parameters_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ud.ConfigError, match=rf"dp\.{next(iter(bad))} = "):
        Dp(**bad)


# The audit.

RUNS, CANARIES, ROUNDS, DELTA = 20, 40, 2, 1e-2


@dataclass(frozen=True)
class Canary(ud.Rule):
    """Every client has a place of the model to itself; the even ones go far there, the odd ones send 0.

    A client that was removed is one that sends nothing, which 0 stands for in a sum. Noise is drawn for each place and
    clients are drawn independently, so all of them tell of independent tries.
    """

    def gradient(self, g: Tensor, y: Tensor, at: ud.ClientAt) -> None:
        g.zero_()
        if at.random.client is not None and at.random.client % 2 == 0:
            g[at.random.client] = -100.0


Scores = np.ndarray[Any, np.dtype[np.float64]]


def scores(rule: Dp) -> tuple[Scores, Scores]:
    """How far the model went in the direction of clients that were there, and of others, over many seeded runs."""
    model = nn.Linear(CANARIES, 1, bias=False).double()
    clients = [(torch.zeros(1, CANARIES).double(), torch.zeros(1, 1).double()) for _ in range(CANARIES)]
    plan = Plan(rounds=ROUNDS, lr=0.1, cohort=32, batch_size=1, weighting="uniform", eval_every=ROUNDS)
    work = prepare(model, Canary() + rule, from_clients(clients), plan, task="regression")
    moves = []
    for seed in range(RUNS):
        result = Run(replace(work, plan=plan.with_(seed=seed)), engine_for, 0).go()
        assert result.server is not None
        moves.append((result.server.x - model.weight.detach()[0]).numpy())
    moved = np.stack(moves)
    return moved[:, ::2].ravel(), moved[:, 1::2].ravel()


def audited(rule: Dp) -> float:
    """A lower bound on epsilon (95 %): the best threshold on one half of the runs, judged on the other.

    For any event ``TPR <= e^eps * FPR + delta``; rates by Clopper-Pearson.
    """
    with_, without = scores(rule)
    thresholds = np.quantile(np.concatenate([with_[::2], without[::2]]), np.linspace(0.02, 0.98, 49))

    def bound(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], t: float, level: float) -> float:
        n, hits, false = len(one), int((one > t).sum()), int((other > t).sum())
        tpr = 0.0 if hits == 0 else float(beta_distribution.ppf(level / 2, hits, n - hits + 1))
        fpr = 1.0 if false == n else float(beta_distribution.ppf(1 - level / 2, false + 1, n - false))
        return math.log((tpr - DELTA) / fpr) if tpr > DELTA else 0.0

    best = max(thresholds, key=lambda t: bound(with_[::2], without[::2], t, 0.05))
    return max(0.0, bound(with_[1::2], without[1::2], best, 0.05))


def test_an_audit_finds_no_more_than_the_claimed_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dp, "report", lambda *_: {})  # one epsilon for all runs is enough
    rule = ud.dp(clip=1.0, noise=1.0, delta=DELTA)
    claimed = epsilon(4 / 5, 1.0, DELTA, ROUNDS)
    found = audited(rule)
    assert 0.5 < found < claimed


def test_the_audit_finds_noise_that_was_taken_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fiftieth of the noise that the accountant is told of, the audit's bound lies above the claim."""
    monkeypatch.setattr(Dp, "report", lambda *_: {})
    claimed = epsilon(4 / 5, 1.0, DELTA, ROUNDS)
    whole = Dp.release
    monkeypatch.setattr(Dp, "release", lambda self, sums, random: whole(replace(self, noise=0.02), sums, random))
    assert audited(ud.dp(clip=1.0, noise=1.0, delta=DELTA)) > claimed
