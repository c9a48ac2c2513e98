"""A round over full models: send down, train at the clients, aggregate, take the server step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from undrift.engines.base import Engine, Lost
from undrift.errors import DivergedError, RunError
from undrift.plan import batches
from undrift.rule import ServerAt, owner_of
from undrift.store import Store
from undrift.streams import stream
from undrift.tree import Tree, grow, leaves, nbytes
from undrift.worker import Cast, Job, Outcome, Work, Worker

Observer = Callable[[int, Outcome, float, Tensor], None]
"""Sees (round, a client's outcome, its weight before normalisation, the server model) as updates are accepted."""


@dataclass
class Server:
    """What the server holds between rounds."""

    x: Tensor
    buffers: Tensor
    state: Tree


@dataclass
class Report:
    """What a round did, besides changing the server."""

    round: int
    clients: list[int]
    lost: list[Lost]
    lr: float
    train_loss: float
    bytes_down: int
    bytes_up: int


@dataclass
class Totals:
    """Running sums over the clients that were heard from, in the order of the cohort."""

    delta: Tensor
    buffers: Tensor
    up: Tree
    weight: float = 0.0
    loss: float = 0.0
    visits: int = 0
    steps: int = 0
    clients: int = 0
    bytes: int = 0
    kept: dict[int, Tree] = field(default_factory=dict)
    diverged: list[int] = field(default_factory=list)

    @staticmethod
    def zero(cast: Cast, up: Tree) -> Totals:
        """Nothing yet, in the shapes of a round's tensors and of what clients send up."""
        zeros = {path: torch.zeros_like(leaf) for path, leaf in leaves(up).items()}
        return Totals(torch.zeros_like(cast.x), torch.zeros_like(cast.buffers), grow(zeros, up))

    def add(self, out: Outcome, weight: float) -> None:
        """Count one client in."""
        self.delta.add_(out.delta, alpha=weight)
        self.buffers.add_(out.buffers, alpha=weight)
        sent = leaves(out.up)
        for path, total in leaves(self.up).items():
            total.add_(sent[path], alpha=weight)
        self.weight += weight
        self.loss += out.loss * out.visits
        self.visits += out.visits
        self.steps += out.steps
        self.clients += 1
        self.bytes += nbytes({"delta": out.delta, "buffers": out.buffers, "up": out.up})
        if not (math.isfinite(out.loss) and math.isfinite(float(out.delta.dot(out.delta)))):
            self.diverged.append(out.client)


class FullRounds:
    """Rounds in which every client trains the whole model."""

    def __init__(self, work: Work, engine: Engine, store: Store, worker: Worker, observers: tuple[Observer, ...] = ()):
        self.work = work
        self.engine = engine
        self.store = store
        self.worker = worker
        self.observers = observers
        self.total_weight = work.plan.total_weight(work.federation)
        self.samples = int(work.federation.offsets[-1])
        self._informed: set[int] = set()

    def skip(self, round: int) -> None:
        """Note what an earlier part of this run did in a round (who has been sent shared data)."""
        if self.work.federation.shared_bytes:
            self._informed.update(self.work.plan.cohort_of(round, len(self.work.federation)))

    def run(self, round: int, server: Server) -> tuple[Server, Report]:
        """One round; the store is changed only if it succeeds."""
        plan, rule, federation = self.work.plan, self.work.rule, self.work.federation
        cohort = plan.cohort_of(round, len(federation))
        cast = Cast(round, plan.rate(round), server.x, server.buffers, rule.down(server.state, round))
        fresh = rule.init_client(server.x)
        jobs = [Job(client, self.store.get(client) or fresh) for client in cohort]
        totals, lost = self._gather(cast, jobs)
        with self.worker.clock("aggregation"):
            new = self._server_round(cast, totals, server)
        for client, kept in totals.kept.items():
            self.store.put(client, kept, round)
        down = self._bytes_down(cast, cohort)
        up = 0 if federation.central else totals.bytes
        return new, Report(round, cohort, lost, cast.lr, totals.loss / totals.visits, down, up)

    def _gather(self, cast: Cast, jobs: list[Job]) -> tuple[Totals, list[Lost]]:
        totals: Totals | None = None
        lost = []
        for out in self.engine.clients(cast, jobs):
            if isinstance(out, Lost):
                lost.append(out)
                continue
            if totals is None:
                totals = Totals.zero(cast, out.up)
            weight = self.work.plan.weight(self.work.federation.size(out.client))
            with self.worker.clock("aggregation"):
                totals.add(out, weight)
            if self.store.each:
                totals.kept[out.client] = out.kept
            for observe in self.observers:
                observe(cast.round, out, weight, cast.x)
        if totals is None:
            reasons = "; ".join(f"client {item.client}: {item.reason}" for item in lost)
            raise RunError(f"round {cast.round}: no client was heard from ({reasons})")
        refuse_diverged(cast, totals)
        return totals, lost

    def _server_round(self, cast: Cast, totals: Totals, server: Server) -> Server:
        rule = self.work.rule
        at = self._server_at(cast, totals, server)
        step, state = rule.server(rule.mean(at.delta, at), at)
        x = rule.after(cast.x + at.server_lr * step, at)
        if not math.isfinite(float(x.dot(x))):
            raise DivergedError(f"round {cast.round}: the server model is not finite after the server step")
        return Server(x, totals.buffers / totals.weight, state)

    def _server_at(self, cast: Cast, totals: Totals, server: Server) -> ServerAt:
        plan, rule = self.work.plan, self.work.rule
        delta = totals.delta / totals.weight
        up = {path: leaf / self.total_weight for path, leaf in leaves(totals.up).items()}
        buffers = totals.buffers / totals.weight
        owned = self.work.federation.central or owner_of(rule, "the server step") is not None
        data = self.work.federation.server
        return ServerAt(
            x=cast.x, state=server.state, up=grow(up, totals.up), delta=delta, share=totals.weight / self.total_weight,
            lr=cast.lr, server_lr=1.0 if owned else plan.step_size(totals.clients), round=cast.round,
            rounds=plan.rounds, population=len(self.work.federation), samples=self.samples,
            mean_steps=totals.steps / totals.clients, mean_visits=totals.visits / totals.clients,
            batch_size=plan.batch_size, server_samples=0 if data is None else len(data[1]),
            learn=lambda *how: self._learn(cast.round, buffers, *how),
        )  # fmt: skip

    def _learn(
        self,
        round: int,
        buffers: Tensor,
        start: Tensor,
        lr: float,
        epochs: int | None,
        steps: int | None,
        batch: int | None,
    ) -> Tensor:
        data = self.work.federation.server
        assert data is not None, "server learning is checked to have data before the run"
        size = self.work.plan.batch_size if batch is None else batch
        order = batches(len(data[1]), size, epochs or 1, steps, stream(self.work.plan.seed, "server-order", round))
        with self.worker.clock("server learning"):
            return self.worker.learn(start, buffers, data, lr, order, round)

    def _bytes_down(self, cast: Cast, cohort: list[int]) -> int:
        if self.work.federation.central:
            return 0
        tracked = {link.name for link in self.work.rule.links if link.tracked}
        model = nbytes({"x": cast.x, "buffers": cast.buffers}) * (len(self.work.federation) if tracked else len(cohort))
        messages = sum(nbytes(message) for name, message in cast.down.items() if name not in tracked) * len(cohort)
        return model + messages + self._shared_down(cohort)

    def _shared_down(self, cohort: list[int]) -> int:
        """What sending shared data to those that do not have it yet costs."""
        fresh = set(cohort) - self._informed if self.work.federation.shared_bytes else set()
        self._informed |= fresh
        return len(fresh) * self.work.federation.shared_bytes


def refuse_diverged(cast: Cast, totals: Totals) -> None:
    """Stop a round in which a client's loss or update is not finite."""
    if totals.diverged:
        raise DivergedError(
            f"round {cast.round}: the loss or the update of client{'s' * (len(totals.diverged) > 1)} "
            f"{', '.join(map(str, totals.diverged))} is not finite; a smaller train.lr may help"
        )
