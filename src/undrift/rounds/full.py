"""A round over full models: send down, train at the clients, aggregate, take the server step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from undrift.core.streams import HookRandom
from undrift.core.tree import nbytes
from undrift.errors import MessageError, RunError
from undrift.rounds.client_states import ClientStates
from undrift.rounds.engine import Engine
from undrift.rounds.messages import Broadcast, ClientTask, Lost, Outcome
from undrift.rounds.server_step import Learner, Report, Server, ServerStep, SharedData, Totals, bytes_down
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker
from undrift.rules.rule import DrawAt

Observer = Callable[[int, Outcome, float, Tensor], None]
"""Sees (round, a client's outcome, its weight before normalisation, the server model) as updates are accepted."""

LOSS_BYTES = 4
"""What a client's answer costs that was asked for its loss."""


class FullRounds:
    """Rounds in which every client trains the whole model."""

    def __init__(
        self, work: Work, engine: Engine, states: ClientStates, worker: Worker, observers: tuple[Observer, ...] = ()
    ) -> None:
        self.work, self.engine, self.states, self.worker = work, engine, states, worker
        self.observers = observers
        self.server_step = ServerStep(work, worker)
        self.shared_data = SharedData(work)
        rule = work.rule
        self.individual, self.draws = bool(rule.acting("aggregate")), bool(rule.acting("draw"))
        self.messages = worker.messages() if rule.encoders or rule.expects else None
        self.asked: set[int] = set()
        """Who was asked for its loss before this round."""

    def skip(self, cohort: list[int]) -> None:
        """Note who took part in a round that an earlier part of this run made (and has been sent shared data)."""
        self.shared_data.skip(cohort)

    def run(self, round: int, server: Server) -> tuple[Server, Report]:
        """One round; what clients keep is changed only if it succeeds."""
        plan, rule, federation = self.work.plan, self.work.rule, self.work.federation
        x, buffers = server.x[: len(self.worker.weights)], server.buffers[: len(self.worker.buffers)]
        cohort = self._cohort(round, x, buffers)
        broadcast = Broadcast(round, plan.rate(round), x, buffers, rule.down(server.state, round))
        found = [self.states.get(client) for client in cohort]
        fresh = rule.init_client(x) if None in found else {}  # shared by all that take part for the first time
        tasks = [
            ClientTask(client, fresh if kept is None else kept) for client, kept in zip(cohort, found, strict=True)
        ]
        totals, lost = self._gather(broadcast, tasks)
        with self.worker.clock("aggregation"):
            new = self._server_round(broadcast, totals, server)
        for client, kept in totals.kept.items():
            self.states.put(client, kept, round)
        down, up = (0, 0) if federation.central else (self._bytes_down(broadcast, cohort), totals.bytes)
        up += LOSS_BYTES * len(self.asked)
        loss = totals.loss / totals.visits if totals.visits else None
        return new, Report(round, cohort, lost, broadcast.lr, loss, down, up)

    def _cohort(self, round: int, x: Tensor, buffers: Tensor) -> list[int]:
        plan, federation = self.work.plan, self.work.federation
        self.asked = set()

        def losses(clients: list[int]) -> list[float]:
            self.asked.update(clients)
            return [self.worker.mean_loss(x, buffers, federation.rows(client)) for client in clients]

        chosen = self.work.rule.draw(replace(draw_at(self.work, round), losses=losses)) if self.draws else None
        return plan.cohort_of(round, len(federation)) if chosen is None else chosen

    def _gather(self, broadcast: Broadcast, tasks: list[ClientTask]) -> tuple[Totals, list[Lost]]:
        totals: Totals | None = None
        lost = []
        for out in self.engine.clients(broadcast, tasks) if tasks else ():
            if isinstance(out, Lost):
                lost.append(out)
                continue
            size = nbytes(out.tree())
            try:
                out = self._taken(out)
            except MessageError as error:
                lost.append(Lost(out.client, str(error)))
                continue
            totals = totals or Totals.zero(broadcast, out.up, individual=self.individual)
            totals.bytes += size
            weight = self.work.plan.weight(self.work.federation.size(out.client))
            with self.worker.clock("aggregation"):
                totals.add(out, weight)
            if self.states.each:
                totals.kept[out.client] = self.states.hold(out.kept)
            for observe in self.observers:
                observe(broadcast.round, out, weight, broadcast.x)
        totals = totals or self._nobody(broadcast, lost)
        totals.refuse_diverged(broadcast.round)
        return totals, lost

    def _taken(self, out: Outcome) -> Outcome:
        """A client's update and messages, decoded, as they are to count."""
        rule = self.work.rule
        if rule.encoders:
            assert self.messages is not None, "what is encoded has a known form"
            plain = rule.undone({"delta": out.delta, "up": out.up}, self.messages.forms)
            out = replace(out, delta=plain["delta"], up=plain["up"], finite=None)
        if rule.receivers:
            counted = rule.receive({"delta": out.delta, "up": out.up})
            out = replace(out, delta=counted["delta"], up=counted["up"], finite=None)
        return out

    def _nobody(self, broadcast: Broadcast, lost: list[Lost]) -> Totals:
        """The sums over nobody, where a round without clients counts as any other."""
        if self.work.rule.expects and not lost:
            assert self.messages is not None, "a rule that knows only expectations has messages of a known form"
            forms, sent = self.messages.forms, self.messages.up.like
            return Totals.zero(broadcast, forms[0]["up"] if forms else sent["up"])
        reasons = "; ".join(f"client {item.client}: {item.reason}" for item in lost)
        raise RunError(f"round {broadcast.round}: no client was heard from ({reasons})")

    def _server_round(self, broadcast: Broadcast, totals: Totals, server: Server) -> Server:
        at = self.server_step.at(broadcast, totals, server)
        x, state = self.server_step.step(at)
        x = self.server_step.after(x, at)
        assert isinstance(at.learn, Learner)
        buffers = at.learn.buffers
        if self.work.personal:
            x, buffers = torch.cat([x, at.learn.own]), torch.cat([buffers, server.buffers[len(buffers) :]])
        return Server(x, buffers, state)

    def _bytes_down(self, broadcast: Broadcast, cohort: list[int]) -> int:
        model = {"x": broadcast.x, "buffers": broadcast.buffers}
        early = len(self.asked - set(cohort)) * nbytes(model)  # those that were asked and chosen have it already
        return bytes_down(self.work, model, broadcast.down, len(cohort)) + self.shared_data.bytes_down(cohort) + early


def draw_at(work: Work, round: int) -> DrawAt:
    """What is known before a round, but for the clients' losses."""
    population, plan = len(work.federation), work.plan
    cohort = min(plan.cohort or population, population)
    random = HookRandom(plan.seed, round)
    return DrawAt(round, population, cohort, work.federation.sizes, lambda clients: [], random)
