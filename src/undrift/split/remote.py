"""Split rounds between processes: clients and the main server are actors that send each other real messages.

Smashed data go from a client's actor straight to the main server's, gradients straight back; the driver only says
who acts when, and synchronises. An actor that dies costs a repetition of the round, which depends on nothing but
what the driver has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from undrift.engines.base import Engine
from undrift.errors import RunError
from undrift.round import Observer, Report, Server, Totals, refuse_diverged
from undrift.split.algorithms import Split, random_order
from undrift.split.messages import Gradient, Smashed, Tally
from undrift.split.noise import Noise
from undrift.split.rounds import SplitRounds
from undrift.split.seat import Seat, Training, Walk
from undrift.split.timetable import Timetable
from undrift.store import Store
from undrift.streams import torch_seed
from undrift.tree import Tree, nbytes
from undrift.worker import Cast, Outcome, Work, Worker

_AHEAD = 16
"""Turns that are handed out before the first of them is waited for."""
_REPETITIONS = 20


class ActorLostError(Exception):
    """A process with a part of the round in it is gone."""


class Actors(Protocol):
    """An engine that can place objects in processes of their own; calls return at once, with a promise."""

    workers: int

    def spawn(self, kind: type, *arguments: Any) -> Any:
        """An actor: ``kind(Worker(work), *arguments)`` in a process of its own."""
        ...

    def call(self, actor: Any, method: str, *arguments: Any, returns: int = 1) -> Any:
        """Ask for a method's result: a promise (or ``returns`` of them), which may be an argument of other calls."""
        ...

    def get(self, promises: Sequence[Any]) -> list[Any]:
        """Wait for results; raises :class:`ActorLostError` if their actor is gone."""
        ...

    def end(self, actors: Sequence[Any]) -> None:
        """End actors."""
        ...


@dataclass(frozen=True)
class Posted:
    """Smashed data on their way, with the state of the client's random stream."""

    message: Smashed
    stream: Tensor


@dataclass(frozen=True)
class Returned:
    """The main server's answer to one client."""

    gradient: Gradient
    loss: float
    stream: Tensor


@dataclass(frozen=True)
class Handed:
    """What a client hands in at a synchronisation; sums over the round so far."""

    y: Tensor
    buffers: Tensor
    up: Tree
    kept: Tree
    period: tuple[float, int, int]
    """Loss over samples, samples visited and steps, of this period."""
    loss: float
    visits: int
    steps: int
    tally: Tally


class Clients:
    """Some of a cohort's clients."""

    def __init__(self, worker: Worker, algorithm: Split) -> None:
        self.rounds = _hosted(worker, algorithm)
        self.walks: dict[int, Walk] = {}
        self.seats: dict[int, tuple[Seat, Tally]] = {}

    def begin(self, round: int, client: int, server: Server, kept: Tree) -> None:
        """A round begins for a client."""
        self.walks[client] = self.rounds._walk(round, client, server)
        self.walks[client].kept = kept

    def open(self, cast: Cast, client: int, steps: int) -> None:
        """A period begins."""
        work, tally = self.rounds.work, Tally()
        worker = self.rounds.worker
        self.training = Training(
            work.rule, cast.lr, work.plan.weight_decay, self.rounds.algorithm.smashed_noise, worker.autocast,
            recompute=False,
        )  # fmt: skip
        self.seats[client] = (self.rounds._seat(cast, self.walks[client], steps, tally), tally)
        worker.mode(training=True)

    def smash(self, client: int) -> Posted:
        """The client's next minibatch, forward to the cut."""
        seat, tally = self.seats[client]
        self.rounds._sit(seat)
        message = seat.smash(self.training)
        tally.count(message)
        return Posted(message, seat.walk.noise.state)

    def learn(self, client: int, answer: Returned) -> int:
        """Backward from the cut; returns how many steps are left."""
        seat, tally = self.seats[client]
        tally.count(answer.gradient)
        seat.walk.noise.state = answer.stream
        seat.learn(answer.gradient, answer.loss, self.training)
        self.rounds._stand(seat, not seat.left)
        return seat.left

    def hand_in(self, client: int) -> Handed:
        """The client's part at a synchronisation."""
        seat, tally = self.seats.pop(client)
        up, kept = self.rounds.work.rule.up(seat.y - seat.at.x, seat.at)
        walk = seat.walk
        walk.kept = kept
        return Handed(
            seat.y, seat.buffers, up, kept, (seat.loss, seat.visits, seat.at.steps), walk.loss, walk.visits,
            walk.steps, tally,
        )  # fmt: skip


class Main:
    """The main server."""

    def __init__(self, worker: Worker, algorithm: Split) -> None:
        self.rounds = _hosted(worker, algorithm)

    def begin(self, seed: int) -> None:
        """A round begins."""
        self.noise = Noise(seed)

    def open(self, cast: Cast) -> None:
        """A period begins."""
        self.cast, self.statistics = cast, dict[int, Tensor]()
        self.rounds.worker.model.load(cast.x, cast.buffers)
        self.rounds.worker.mode(training=True)
        self.rounds.halves.server.train()

    def step(self, rate: float, q: list[float], *posted: Posted) -> Any:
        """Answer clients that act together, and make one step."""
        main, alone = self.rounds.main, None if self.rounds.algorithm.joint else posted[0].message.client
        if alone is not None:
            main.buffers.copy_(self.statistics.get(alone, self.cast.buffers[self.rounds.halves.buffer_size :]))
        noises = [Noise.at(item.stream) for item in posted]
        gradients, losses = main.step([item.message for item in posted], q, noises, self.noise, rate)
        if alone is not None:
            self.statistics[alone] = main.buffers.clone()
        answers = [Returned(g, loss, n.state) for g, loss, n in zip(gradients, losses, noises, strict=True)]
        return answers if len(answers) > 1 else answers[0]

    def hand_in(self) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
        """The server part, its statistics, and those that single clients' batches made."""
        return self.rounds.main.weights.clone(), self.rounds.main.buffers.clone(), self.statistics


def _hosted(worker: Worker, algorithm: Split) -> SplitRounds:
    """The rounds' own functions, in an actor; nothing is stored or carried out through an engine there."""
    nothing: Any = None
    return SplitRounds(algorithm, worker.work, nothing, Store({}), worker)


class RemoteRounds(SplitRounds):
    """Split rounds whose parties are actors."""

    def __init__(
        self, algorithm: Split, work: Work, engine: Engine, store: Store, worker: Worker,
        observers: tuple[Observer, ...] = (),
    ) -> None:  # fmt: skip
        super().__init__(algorithm, work, engine, store, worker, observers)
        self.actors: Actors = engine  # type: ignore[assignment]
        self._hosts: list[Any] = []
        self._main: Any = None

    def _by_message(self, round: int, server: Server) -> tuple[Server, Report]:
        for _ in range(_REPETITIONS):
            try:
                return self._attempt(round, server)
            except ActorLostError:
                self.actors.end([self._main, *self._hosts])
                self._hosts = []
        raise RunError(f"round {round}: processes of clients or main server were lost {_REPETITIONS} times")

    def _attempt(self, round: int, server: Server) -> tuple[Server, Report]:
        plan, rule, federation = self.work.plan, self.work.rule, self.work.federation
        cohort = plan.cohort_of(round, len(federation))
        table = Timetable.of(cohort, federation, plan)
        self._begin(round, cohort, server)
        tally, now, last = Tally(), server, dict[int, Handed]()
        for period in table.periods(self.algorithm.sync_steps):
            cast = Cast(round, plan.rate(round), now.x, now.buffers, rule.down(now.state, round))
            totals, handed = self._played(cast, table, period, tally)
            last |= handed
            now = self._synchronise(cast, totals, now)
        sums = [last[client] for client in cohort]
        now = self._ended(replace(cast, x=server.x), totals, now, sums)
        for client in cohort:
            self.store.put(client, last[client].kept, round)
        tally.down += self._shared_down(cohort)
        loss = sum(item.loss for item in sums) / sum(item.visits for item in sums)
        return now, Report(round, cohort, [], cast.lr, loss, tally.down, tally.up)

    def _begin(self, round: int, cohort: list[int], server: Server) -> None:
        if not self._hosts:
            self._main = self.actors.spawn(Main, self.algorithm)
            self._hosts = [self.actors.spawn(Clients, self.algorithm) for _ in range(self.actors.workers)]
        self._host = {client: self._hosts[i % len(self._hosts)] for i, client in enumerate(cohort)}
        seed = torch_seed(self.work.plan.seed, "server-noise", round, 1)
        begun = [self.actors.call(self._main, "begin", seed)]
        for client in cohort:
            kept = self.store.get(client) or self.work.rule.init_client(server.x)
            begun.append(self._ask(client, "begin", round, client, server, kept))
        self.actors.get(begun)

    def _ask(self, client: int, method: str, *arguments: Any) -> Any:
        return self.actors.call(self._host[client], method, *arguments)

    def _played(self, cast: Cast, table: Timetable, period: range, tally: Tally) -> tuple[Totals, dict[int, Handed]]:
        """From one synchronisation to the next: all steps, then the clients' updates in the order of the cohort."""
        acting, plan = table.acting(period), self.work.plan
        opened = [self.actors.call(self._main, "open", cast)]
        opened += [self._ask(client, "open", cast, client, steps) for client, steps in acting.items()]
        self.actors.get(opened)
        tally.down += self._front_down(cast, len(acting))
        order = random_order(plan.seed, cast.round, list(table.batches))
        rate, under_way = self.algorithm.main_rate(plan, cast.round), list[list[Any]]()
        for group in self.algorithm.turns(table, period, order):
            under_way.append(self._turn_of(group, rate))
            if len(under_way) > _AHEAD:
                self.actors.get(under_way.pop(0))
        handed = dict(zip(acting, self.actors.get([self._ask(c, "hand_in", c) for c in acting]), strict=True))
        return self._summed(cast, handed, tally), handed

    def _turn_of(self, group: tuple[int, ...], rate: float) -> list[Any]:
        weights = [self.work.plan.weight(self.work.federation.size(client)) for client in group]
        q = [weight / sum(weights) for weight in weights]
        posted = [self._ask(client, "smash", client) for client in group]
        answers = self.actors.call(self._main, "step", rate, q, *posted, returns=len(group))
        answers = [answers] if len(group) == 1 else answers
        return [self._ask(client, "learn", client, answer) for client, answer in zip(group, answers, strict=True)]

    def _summed(self, cast: Cast, handed: dict[int, Handed], tally: Tally) -> Totals:
        main, main_buffers, own = self.actors.get([self.actors.call(self._main, "hand_in")])[0]
        self.main.weights.copy_(main)
        self.main.buffers.copy_(main_buffers)
        totals: Totals | None = None
        for client, item in handed.items():
            statistics = main_buffers if self.algorithm.joint else own[client]
            loss, visits, steps = item.period
            out = Outcome(
                client, torch.cat([item.y, main]) - cast.x, torch.cat([item.buffers, statistics]), item.up, item.kept,
                loss / visits, visits, steps,
            )  # fmt: skip
            tally.up += nbytes({"y": item.y, "buffers": item.buffers, "up": item.up}) + item.tally.up
            tally.down += item.tally.down
            weight = self.work.plan.weight(self.work.federation.size(client))
            totals = totals or Totals.zero(cast, out.up)
            totals.add(out, weight)
            for observe in self.observers:
                observe(cast.round, out, weight, cast.x)
        assert totals is not None, "every period has a step"
        refuse_diverged(cast, totals)
        return totals

    def _ended(self, cast: Cast, totals: Totals, now: Server, sums: list[Handed]) -> Server:
        walks: Any = sums  # all that is asked of a walk here are its sums
        return self._after(cast, totals, now, walks)
