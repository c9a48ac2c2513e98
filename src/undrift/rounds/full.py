"""A round over full models: send down, train at the clients, aggregate, take the server step."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from undrift.errors import RunError
from undrift.rounds.client_states import ClientStates
from undrift.rounds.engine import Engine
from undrift.rounds.messages import Broadcast, ClientTask, Lost, Outcome
from undrift.rounds.server_step import Report, Server, ServerStep, SharedData, Totals, bytes_down
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker

Observer = Callable[[int, Outcome, float, Tensor], None]
"""Sees (round, a client's outcome, its weight before normalisation, the server model) as updates are accepted."""


class FullRounds:
    """Rounds in which every client trains the whole model."""

    def __init__(
        self, work: Work, engine: Engine, states: ClientStates, worker: Worker, observers: tuple[Observer, ...] = ()
    ) -> None:
        self.work, self.engine, self.states, self.worker = work, engine, states, worker
        self.observers = observers
        self.server_step = ServerStep(work, worker)
        self.shared_data = SharedData(work)

    def skip(self, round: int) -> None:
        """Note what an earlier part of this run did in a round (who has been sent shared data)."""
        self.shared_data.skip(round)

    def run(self, round: int, server: Server) -> tuple[Server, Report]:
        """One round; what clients keep is changed only if it succeeds."""
        plan, rule, federation = self.work.plan, self.work.rule, self.work.federation
        cohort = plan.cohort_of(round, len(federation))
        broadcast = Broadcast(round, plan.rate(round), server.x, server.buffers, rule.down(server.state, round))
        fresh = rule.init_client(server.x)
        tasks = [ClientTask(client, self.states.get(client) or fresh) for client in cohort]
        totals, lost = self._gather(broadcast, tasks)
        with self.worker.clock("aggregation"):
            new = self._server_round(broadcast, totals, server)
        for client, kept in totals.kept.items():
            self.states.put(client, kept, round)
        down, up = (0, 0) if federation.central else (self._bytes_down(broadcast, cohort), totals.bytes)
        return new, Report(round, cohort, lost, broadcast.lr, totals.loss / totals.visits, down, up)

    def _gather(self, broadcast: Broadcast, tasks: list[ClientTask]) -> tuple[Totals, list[Lost]]:
        totals: Totals | None = None
        lost = []
        for out in self.engine.clients(broadcast, tasks):
            if isinstance(out, Lost):
                lost.append(out)
                continue
            totals = totals or Totals.zero(broadcast, out.up)
            weight = self.work.plan.weight(self.work.federation.size(out.client))
            with self.worker.clock("aggregation"):
                totals.add(out, weight)
            if self.states.each:
                totals.kept[out.client] = out.kept
            for observe in self.observers:
                observe(broadcast.round, out, weight, broadcast.x)
        if totals is None:
            reasons = "; ".join(f"client {item.client}: {item.reason}" for item in lost)
            raise RunError(f"round {broadcast.round}: no client was heard from ({reasons})")
        totals.refuse_diverged(broadcast.round)
        return totals, lost

    def _server_round(self, broadcast: Broadcast, totals: Totals, server: Server) -> Server:
        at = self.server_step.at(broadcast, totals, server)
        x, state = self.server_step.step(at)
        return Server(self.server_step.after(x, at), totals.buffers / totals.weight, state)

    def _bytes_down(self, broadcast: Broadcast, cohort: list[int]) -> int:
        model = {"x": broadcast.x, "buffers": broadcast.buffers}
        return bytes_down(self.work, model, broadcast.down, len(cohort)) + self.shared_data.bytes_down(cohort)
