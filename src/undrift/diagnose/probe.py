"""Measures of one federation from a few rounds of FedAvg and a few gradients.

How non-IID: ``G^2`` also holds the noise of small clients, so it is compared with ``G_iid^2``, the same samples dealt
out at random to clients of the same sizes; ``(G^2 - G_iid^2) / ||grad F||^2`` is what the clients' *kind* of data adds.

This, and the server's data, are judged at models that have not collapsed onto the classes of the last cohort: at the
start and after training on pooled data. (A collapsed model has a large ``grad F``, and any balanced data, even
mislabelled, would pull it back.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undrift.core.numerics import settled
from undrift.core.streams import stream
from undrift.data.samples import InMemory, Samples
from undrift.diagnose.plan import (
    TEST_SAMPLES,
    ProbePlan,
    dealt_at_random,
    gradient_rows,
    plan_probe,
    training_plan,
)
from undrift.engines.auto import engine_for
from undrift.measure.drift import Drift, Updates
from undrift.measure.gradients import Gradients, gradients_at, square
from undrift.measure.skew import Skew, counts_of, skew_of
from undrift.rounds.loop import Result, Run
from undrift.rounds.plan import batches
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker
from undrift.rules.chain import chain
from undrift.rules.rule import FedAvg

__all__ = ["Findings", "Point", "ServerData", "plan_probe", "probe"]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Point:
    """Gradients at one model."""

    where: str
    G2: float
    G2_iid: float
    norm2: float
    xi2: float | None
    cosine: float | None
    """Between the server data's gradient and the federation's."""
    helps: bool | None
    """FSL's condition (9)."""


@dataclass(frozen=True)
class ServerData:
    """Whether the server's data point where the federation wants to go."""

    samples: int
    cosine: float
    """The least over the points that count."""
    ratio: float
    """``xi^2 / G^2``, the largest over these points."""
    helps: bool
    """Whether condition (9) holds at all of them."""
    eta_0: float


@dataclass(frozen=True)
class Findings:
    """What the probe found; all that the advice is drawn from."""

    clients: int
    cohort: int
    rounds: int
    samples: int
    steps: float
    """Local steps of a client in a round, on average."""
    skew: Skew | None
    excess: float
    """``(G^2 - G_iid^2) / ||grad F||^2`` over the points that count."""
    points: list[Point]
    smoothness: float
    """``L``, from differences of gradients along the probe."""
    drift: float
    """Drift diversity times the cohort: 1 = equal updates, the cohort's size = orthogonal ones."""
    layers: dict[str, float]
    """The same for each layer, from input to output."""
    shares: dict[str, float]
    """Each layer's share of the parameters."""
    cosine: float | None
    """Between clients' updates and their mean."""
    server: ServerData | None
    accuracy: float | None = None
    """FedAvg's after the probe's rounds."""
    rate: float = 0.1
    """The clients' in round 1."""

    @property
    def participation(self) -> float:
        """Share of the clients that take part in a round."""
        return self.cohort / self.clients

    def as_json(self) -> dict[str, Any]:
        """For ``diagnosis.json``."""
        return asdict(self) | {"participation": self.participation}


def probe(work: Work, plan: ProbePlan | None = None, say: Say = lambda text: None) -> Findings:
    """Probe the federation of ``work``, whatever its algorithm is; the same seed gives the same findings."""
    plan = plan or plan_probe(work)
    plain = replace(work, rule=chain(FedAvg()), plan=training_plan(work.plan, plan), federation=_small_test(work))
    say(f"FedAvg, {plan.rounds} rounds")
    result, drift = _fedavg(plain)
    with settled():
        worker = Worker(plain)
        models = _models(worker, result, plan)
        found = _gradients(worker, models, plan, say)
    return _findings(work, plan, result, drift, models, found)


def _small_test(work: Work) -> Any:
    test = work.federation.test
    if test is None:
        return work.federation
    few = InMemory(*test.take(np.arange(min(len(test), TEST_SAMPLES))))
    return replace(work.federation, test=few, validation=None)


@dataclass
class _EveryRound:
    """Drift and cosines of every round: the probe is too short to skip any."""

    drift: Drift = field(default_factory=Drift)
    updates: Updates = field(default_factory=Updates)
    records: list[dict[str, Any]] = field(default_factory=list)
    _last: int = 0

    def begin(self, worker: Worker) -> None:
        self.drift.begin(worker)
        self.updates.begin(worker)

    def observe(self, round: int, outcome: Any, weight: float, x: Tensor) -> None:
        if round != self._last and self._last:
            self._close()
        self._last = round
        self.drift.see(outcome, weight, x)
        self.updates.see(outcome, weight, x)

    def report(self, round: int, server: Any) -> dict[str, Any]:
        if self._last:
            self._close()
            self._last = 0
        return {}

    def _close(self) -> None:
        nobody: Any = None
        self.records.append(self.drift.tell(0, nobody) | self.updates.tell(0, nobody))


def _fedavg(work: Work) -> tuple[Result, list[dict[str, Any]]]:
    watch = _EveryRound()
    return Run(work, engine_for, measures=(watch,)).go(), watch.records


def _models(worker: Worker, result: Result, plan: ProbePlan) -> dict[str, tuple[Tensor, Tensor]]:
    """The models at which gradients are taken."""
    assert result.server is not None
    start = worker.model.weights.clone(), worker.model.buffers.clone()
    federation, settings = worker.work.federation, worker.work.plan
    rows = federation.indices
    order = batches(len(rows), settings.batch_size, 1, plan.pooled_steps, stream(settings.seed, "probe", 3))
    x = worker.learn(*start, federation.pool, settings.rate(1), (rows[o] for o in order), 0)
    pooled = x, worker.model.buffers.clone()
    return {"start": start, "pooled": pooled, "fedavg": (result.server.x, result.server.buffers)}


def _gradients(
    worker: Worker, models: dict[str, tuple[Tensor, Tensor]], plan: ProbePlan, say: Say
) -> dict[str, tuple[Gradients, Gradients]]:
    """At every model: gradients of the clients as they are, and as they would be if dealt out at random."""
    own = gradient_rows(worker.work, plan)
    mixed = dealt_at_random(own, worker.work.plan.seed)
    server = _server_rows(worker.work, plan)
    found = {}
    for name, (x, buffers) in models.items():
        if torch.isfinite(x).all():
            say(f"gradients at the model of {name!r}")
            found[name] = gradients_at(worker, x, buffers, own, server), gradients_at(worker, x, buffers, mixed, None)
    return found


def _server_rows(work: Work, plan: ProbePlan) -> Samples | None:
    if (data := work.federation.server) is None:
        return None
    drawn = stream(work.plan.seed, "probe", 4).permutation(len(data))[: plan.server_rows]
    return InMemory(*data.take(drawn))


def _findings(
    work: Work,
    plan: ProbePlan,
    result: Result,
    drift: list[dict[str, Any]],
    models: dict[str, tuple[Tensor, Tensor]],
    found: dict[str, tuple[Gradients, Gradients]],
) -> Findings:
    federation, settings = work.federation, work.plan
    smoothness = _smoothness(models, found)
    eta_0 = _eta_0(work)
    points = [_point(name, own, mixed, smoothness, eta_0) for name, (own, mixed) in found.items()]
    labelled = federation.labels is not None
    return Findings(
        clients=len(federation),
        cohort=min(settings.cohort or len(federation), len(federation)),
        rounds=settings.rounds,
        samples=int(federation.sizes.sum()),
        steps=sum(settings.steps(int(n)) for n in federation.sizes) / len(federation),
        skew=skew_of(counts_of(federation)) if labelled else None,
        excess=_excess(points),
        points=points,
        smoothness=smoothness,
        drift=plan.cohort * _mean([record["drift"]["model"] for record in drift]),
        layers={
            name: plan.cohort * _mean([record["drift"]["layers"][name] for record in drift])
            for name in drift[0]["drift"]["layers"]
        },
        shares=_shares(work),
        cosine=_mean([record["updates"]["cosine"] for record in drift]),
        server=_server(points, federation.server, eta_0),
        accuracy=result.summary["final_accuracy"],
        rate=settings.rate(1),
    )


def _shares(work: Work) -> dict[str, float]:
    layout = Worker(work).model.layout
    return {layer.name: sum(s.stop - s.start for s in layer.slices) / layout.size for layer in layout.layers}


def _judged(points: list[Point]) -> list[Point]:
    return [point for point in points if point.where != "fedavg"]


def _excess(points: list[Point]) -> float:
    more = sum(max(point.G2 - point.G2_iid, 0.0) for point in _judged(points))
    common = sum(point.norm2 for point in _judged(points))
    return more / common if common else 0.0


def _mean(values: list[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else float("nan")


def _smoothness(models: dict[str, tuple[Tensor, Tensor]], found: dict[str, tuple[Gradients, Gradients]]) -> float:
    """``L``: the largest ``||grad F(x) - grad F(x')|| / ||x - x'||`` between the start and the other models."""
    largest = 0.0
    for name, (own, _) in found.items():
        moved = square((models[name][0] - models["start"][0]).double())
        if moved > 0:
            largest = max(largest, (square(own.whole - found["start"][0].whole) / moved) ** 0.5)
    return largest


def _eta_0(work: Work) -> float:
    """The server's rate when server and clients move equally far: ``server_lr * lr * K / K_0``."""
    federation, plan = work.federation, work.plan
    if federation.server is None:
        return 0.0
    n_0 = len(federation.server)
    visits = sum(plan.visits(int(n)) for n in federation.sizes) / len(federation)
    steps = sum(plan.steps(int(n)) for n in federation.sizes) / len(federation)
    k_0 = -(-visits // n_0) * -(-n_0 // (plan.batch_size or n_0))
    return plan.step_size(plan.cohort or len(federation)) * plan.rate(1) * steps / k_0


def _point(name: str, own: Gradients, mixed: Gradients, smoothness: float, eta_0: float) -> Point:
    helps = None if own.server is None else own.helps(smoothness, eta_0)
    return Point(name, own.g2, mixed.g2, square(own.whole), own.xi2, own.cosine, helps)


def _server(points: list[Point], data: Samples | None, eta_0: float) -> ServerData | None:
    judged = [p for p in _judged(points) if p.xi2 is not None and p.cosine is not None]
    if data is None or not judged:
        return None
    return ServerData(
        len(data),
        min(p.cosine for p in judged if p.cosine is not None),
        max(p.xi2 / p.G2 if p.G2 else float("inf") for p in judged if p.xi2 is not None),
        all(bool(p.helps) for p in judged),
        eta_0,
    )
