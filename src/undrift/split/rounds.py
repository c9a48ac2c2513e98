"""Rounds of split learning: smashed data up and gradients down in every step, client parts at synchronisation.

Client ``n``'s model is ``y_n = (w_c,n, w_s)``; to the fed server, rules, records and measures it is an update like
any other. The fed server's rate and the rules of the chain act on what it averages: the clients' parts
(and, in SFL-V1, the copies of the server part under the plain server rate).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from undrift.engines.base import Engine
from undrift.errors import DivergedError
from undrift.plan import batches
from undrift.round import FullRounds, Observer, Report, Server, Totals, refuse_diverged
from undrift.rule import ClientAt
from undrift.split.algorithms import Split, random_order
from undrift.split.halves import halve
from undrift.split.main_server import MainServer
from undrift.split.messages import Tally
from undrift.split.noise import Noise
from undrift.split.probe import asks_full_gradient, graph_bytes, smashed_bytes
from undrift.split.seat import Seat, Training, Walk
from undrift.split.timetable import Timetable
from undrift.store import Store
from undrift.streams import stream, torch_seed
from undrift.tree import nbytes
from undrift.vector import FlatModel
from undrift.worker import Cast, Outcome, Work, Worker

MEMORY = 3 << 30
"""Bytes that a cohort's models and graphs may take; above it, forward passes are made again for their gradients."""


class SplitRounds(FullRounds):
    """Rounds in which clients train the front of the model and a main server the back."""

    def __init__(
        self,
        algorithm: Split,
        work: Work,
        engine: Engine,
        store: Store,
        worker: Worker,
        observers: tuple[Observer, ...] = (),
    ) -> None:
        super().__init__(work, engine, store, worker, observers)
        self.algorithm = algorithm
        model = worker.model
        self.halves = halve(model, algorithm.cut)
        size, held = self.halves.size, self.halves.buffer_size
        self.main = MainServer(
            self.halves.server, model.weights[size:], model.grad[size:], model.buffers[held:],
            work.loss, work.plan.weight_decay, worker.autocast, faithful=algorithm.faithful,
        )  # fmt: skip
        self._free: list[FlatModel] = []
        self.memory = MEMORY
        self.graph_bytes = graph_bytes(worker, self.halves.client)
        self.smashed_bytes = smashed_bytes(worker, self.halves.client)
        self.whole = algorithm.whole and not asks_full_gradient(work.rule, model.weights)

    def run(self, round: int, server: Server) -> tuple[Server, Report]:
        """One round; the store is changed only if it succeeds."""
        return self._by_engine(round, server) if self.whole else self._by_message(round, server)

    def _by_engine(self, round: int, server: Server) -> tuple[Server, Report]:
        """Clients with their own copy of the server part train what is a whole model: a full round, other bytes."""
        new, report = super().run(round, server)
        plan, federation = self.work.plan, self.work.federation
        heard = set(report.clients) - {lost.client for lost in report.lost}
        visits = sum(plan.visits(federation.size(client)) for client in heard)
        main = (server.x[self.halves.size :].nbytes + server.buffers[self.halves.buffer_size :].nbytes) * len(heard)
        down = report.bytes_down + visits * self.smashed_bytes
        up = report.bytes_up - main + visits * (self.smashed_bytes + federation.y[0].nbytes)
        return new, replace(report, bytes_down=down, bytes_up=up)

    def _by_message(self, round: int, server: Server) -> tuple[Server, Report]:
        """Every client's steps and the main server's in this process, one message after the other."""
        plan, rule, federation = self.work.plan, self.work.rule, self.work.federation
        cohort = plan.cohort_of(round, len(federation))
        table = Timetable.of(cohort, federation, plan)
        walks = {client: self._walk(round, client, server) for client in cohort}
        own = Noise(torch_seed(plan.seed, "server-noise", round, 1))
        tally, now = Tally(), server
        for period in table.periods(self.algorithm.sync_steps):
            cast = Cast(round, plan.rate(round), now.x, now.buffers, rule.down(now.state, round))
            totals = self._period(cast, table, period, walks, own, tally)
            now = self._synchronise(cast, totals, now)
        now = self._after(replace(cast, x=server.x), totals, now, list(walks.values()))
        for walk in walks.values():
            self.store.put(walk.client, walk.kept, round)
        tally.down += self._shared_down(cohort)
        visits = sum(walk.visits for walk in walks.values())
        loss = sum(walk.loss for walk in walks.values()) / visits
        return now, Report(round, cohort, [], cast.lr, loss, tally.down, tally.up)

    def _walk(self, round: int, client: int, server: Server) -> Walk:
        plan, federation = self.work.plan, self.work.federation
        index = federation.rows(client)
        order = batches(
            len(index), plan.batch_size, plan.local_epochs, plan.local_steps,
            stream(plan.seed, "order", round, client),
        )  # fmt: skip
        return Walk(
            client, plan.weight(len(index)), self.worker.batches(index, order, round, client),
            Noise(torch_seed(plan.seed, "noise", round, client)),
            torch.Generator().manual_seed(torch_seed(plan.seed, "smashed", round, client)),
            self.store.get(client) or self.work.rule.init_client(server.x),
        )  # fmt: skip

    def _period(
        self,
        cast: Cast,
        table: Timetable,
        period: range,
        walks: dict[int, Walk],
        own: Noise,
        tally: Tally,
    ) -> Totals:
        """From one synchronisation to the next: all steps, then the clients' updates."""
        plan = self.work.plan
        training = Training(
            self.work.rule,
            cast.lr,
            plan.weight_decay,
            self.algorithm.smashed_noise,
            self.worker.autocast,
            recompute=self._needed(len(table.batches)) > self.memory,
        )
        seats = {
            client: self._seat(cast, walks[client], steps, tally) for client, steps in table.acting(period).items()
        }
        tally.down += self._front_down(cast, len(seats))
        self.worker.model.load(cast.x, cast.buffers)
        order = random_order(plan.seed, cast.round, list(table.batches))
        rate = self.algorithm.main_rate(plan, cast.round)
        self.worker.mode(training=True)
        self.halves.server.train()
        for group in self.algorithm.turns(table, period, order):
            self._turn(cast, [seats[client] for client in group], training, own, rate, tally)
        with self.worker.clock("aggregation"):
            return self._collect(cast, list(seats.values()), tally)

    def _seat(self, cast: Cast, walk: Walk, steps: int, tally: Tally) -> Seat:
        size, held = self.halves.size, self.halves.buffer_size
        at = ClientAt(
            cast.x[:size], cast.down, walk.kept, cast.lr, steps, cast.round,
            lambda: self._full_gradient(cast, walk.client, tally),
        )  # fmt: skip
        at.local = self.work.rule.start(at)
        return Seat(walk, at, at.x, cast.buffers[:held], cast.buffers[held:].clone(), steps)

    def _turn(self, cast: Cast, seats: list[Seat], training: Training, own: Noise, rate: float, tally: Tally) -> None:
        """One step of the clients that act together, and of the main server."""
        if not self.algorithm.joint:
            self.main.buffers.copy_(seats[0].main_buffers)
        if self.algorithm.copies and not seats[0].visits:
            self.main.weights.copy_(cast.x[self.halves.size :])
        messages = []
        with self.worker.clock("forward/backward"):
            for seat in seats:
                self._sit(seat)
                messages.append(seat.smash(training))
                self._stand(seat, training.recompute)
        total = sum(seat.walk.weight for seat in seats)
        q = [seat.walk.weight / total for seat in seats]
        with self.worker.clock("main server"):
            gradients, losses = self.main.step(messages, q, [seat.walk.noise for seat in seats], own, rate)
        if not self.algorithm.joint:
            seats[0].main_buffers.copy_(self.main.buffers)
        if self.algorithm.copies and seats[0].left == 1:
            seats[0].main = self.main.weights.clone()
        for message, gradient in zip(messages, gradients, strict=True):
            tally.count(message)
            tally.count(gradient)
        with self.worker.clock("forward/backward"):
            for seat, gradient, loss in zip(seats, gradients, losses, strict=True):
                self._sit(seat)
                seat.learn(gradient, loss, training)
                self._stand(seat, training.recompute or self.algorithm.alternates or not seat.left)

    def _sit(self, seat: Seat) -> None:
        if seat.front is None:
            front = self._free.pop() if self._free else FlatModel(self.halves.client, self.work.device)
            front.module.train()
            seat.take(front)

    def _stand(self, seat: Seat, now: bool) -> None:
        if now:
            self._free.append(seat.leave())

    def _collect(self, cast: Cast, seats: list[Seat], tally: Tally) -> Totals:
        """The clients' updates, summed in the order of the cohort; counts what they send."""
        totals: Totals | None = None
        main, main_buffers = self.main.weights.clone(), self.main.buffers.clone()
        for seat in seats:
            out = self._outcome(cast, seat, main, main_buffers)
            tally.up += nbytes({"y": seat.y, "buffers": seat.buffers, "up": out.up})
            totals = totals or Totals.zero(cast, out.up)
            totals.add(out, seat.walk.weight)
            for observe in self.observers:
                observe(cast.round, out, seat.walk.weight, cast.x)
        assert totals is not None, "every period has a step"
        refuse_diverged(cast, totals)
        return totals

    def _outcome(self, cast: Cast, seat: Seat, main: Tensor, main_buffers: Tensor) -> Outcome:
        up, seat.walk.kept = self.work.rule.up(seat.y - seat.at.x, seat.at)
        y = torch.cat([seat.y, main if seat.main is None else seat.main])
        buffers = torch.cat([seat.buffers, main_buffers if self.algorithm.joint else seat.main_buffers])
        return Outcome(
            seat.walk.client, y - cast.x, buffers, up, seat.walk.kept,
            seat.loss / seat.visits, seat.visits, seat.at.steps,
        )  # fmt: skip

    def _synchronise(self, cast: Cast, totals: Totals, server: Server) -> Server:
        """The fed server's step; the main server's part is what its own steps made it."""
        at = self._server_at(cast, totals, server)
        step, state = self.work.rule.server(at.delta, at)
        x = cast.x + at.server_lr * step
        if not self.algorithm.copies:
            x[self.halves.size :] = self.main.weights
        buffers = totals.buffers / totals.weight
        if self.algorithm.joint:
            buffers[self.halves.buffer_size :] = self.main.buffers
        return Server(x, buffers, state)

    def _after(self, cast: Cast, totals: Totals, now: Server, walks: list[Walk]) -> Server:
        """What acts on the whole model after the round's last synchronisation (server learning)."""
        at = replace(
            self._server_at(cast, totals, now),
            mean_steps=sum(walk.steps for walk in walks) / len(walks),
            mean_visits=sum(walk.visits for walk in walks) / len(walks),
            learn=lambda *how: self._learn(cast.round, now.buffers, *how),
        )
        x = self.work.rule.after(now.x, at)
        if not math.isfinite(float(x.dot(x))):
            raise DivergedError(f"round {cast.round}: the server model is not finite after the server step")
        return replace(now, x=x)

    def _front_down(self, cast: Cast, clients: int) -> int:
        """The clients' part and the rules' messages; a tracked rule's followers hear every broadcast."""
        tracked = {link.name for link in self.work.rule.links if link.tracked}
        front = {"x": cast.x[: self.halves.size], "buffers": cast.buffers[: self.halves.buffer_size]}
        sent = {name: message for name, message in cast.down.items() if name not in tracked}
        return nbytes(front) * (len(self.work.federation) if tracked else clients) + nbytes(sent) * clients

    def _bytes_down(self, cast: Cast, cohort: list[int]) -> int:
        return self._front_down(cast, len(cohort)) + self._shared_down(cohort)

    def _full_gradient(self, cast: Cast, client: int, tally: Tally) -> Tensor:
        """The gradient of the client's whole loss at the synchronised model, through the cut and back."""
        index = self.work.federation.rows(client)
        tally.up += len(index) * (self.smashed_bytes + self.work.federation.y[0].nbytes)
        tally.down += len(index) * self.smashed_bytes
        return self.worker.full_gradient(cast.x, cast.buffers, index)[: self.halves.size]

    def _needed(self, clients: int) -> int:
        """About what a model and a graph for each client of a cohort take."""
        if not self.algorithm.joint:
            return 0
        samples = self.work.plan.batch_size or max(self.work.federation.sizes)
        front = 2 * self.worker.model.weights[: self.halves.size].nbytes
        return clients * (front + int(samples) * self.graph_bytes)
