"""Rounds of split learning: smashed data up and gradients down in every step, client parts at synchronisation.

Client ``n``'s model is ``y_n = (w_c,n, w_s)``; to the fed server, rules, records and measures it is an update like
any other. The fed server's rate and the rules of the chain act on what it averages: the clients' parts
(and, in SFL-V1, the copies of the server part under the plain server rate).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from undrift.core.streams import stream
from undrift.core.tree import nbytes
from undrift.errors import RunError
from undrift.rounds.client_states import ClientStates
from undrift.rounds.engine import Engine
from undrift.rounds.full import FullRounds, Observer
from undrift.rounds.messages import Broadcast, Outcome
from undrift.rounds.plan import Plan
from undrift.rounds.server_step import Report, Server, ServerStep, SharedData, Totals, bytes_down
from undrift.rounds.split.messages import ClientUpdate, MainUpdate, Tally
from undrift.rounds.split.parties import ActorLostError, Actors, InActors, InProcess, Parties
from undrift.rounds.split.parts import SplitParts
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker
from undrift.rules.rehearsal import rehearse
from undrift.rules.rule import Owns
from undrift.rules.split import Split, Timetable

_REPETITIONS = 20


class SplitRounds:
    """Rounds in which clients train the front of the model and a main server the back."""

    def __init__(
        self, work: Work, engine: Engine, states: ClientStates, worker: Worker, observers: tuple[Observer, ...] = ()
    ) -> None:
        algorithm = work.rule.owner_of(Owns.ROUND_KIND)
        assert isinstance(algorithm, Split)
        self.work, self.worker, self.states, self.observers = work, worker, states, observers
        self.algorithm = algorithm
        self.server_step, self.shared_data = ServerStep(work, worker), SharedData(work)
        self.parts = SplitParts(worker, algorithm)
        self.parties: Parties = InProcess(self.parts)
        if isinstance(engine, Actors) and not algorithm.copies:
            self.parties = InActors(engine, algorithm)
        self.full: FullRounds | None = None
        if algorithm.whole and not rehearse(work.rule, worker.model.weights).asks_full_gradient:
            self.full = FullRounds(work, engine, states, worker, observers)

    def skip(self, cohort: list[int]) -> None:
        """Note who took part in a round that an earlier part of this run made (and has been sent shared data)."""
        (self.full or self.shared_data).skip(cohort)

    def run(self, round: int, server: Server) -> tuple[Server, Report]:
        """One round; what clients keep is changed only if it succeeds."""
        if self.full is not None:
            return self._as_full_round(self.full, round, server)
        for _ in range(_REPETITIONS):
            try:
                return self._attempt(round, server)
            except ActorLostError:
                self.parties.restart()
        raise RunError(f"round {round}: processes of clients or main server were lost {_REPETITIONS} times")

    def _as_full_round(self, full: FullRounds, round: int, server: Server) -> tuple[Server, Report]:
        """Clients with their own copy of the server part train what is a whole model: a full round, other bytes."""
        new, report = full.run(round, server)
        plan, federation, halves = self.work.plan, self.work.federation, self.parts.halves
        heard = set(report.clients) - {lost.client for lost in report.lost}
        visits = sum(plan.visits(federation.size(client)) for client in heard)
        smashed = self.parts.smashed_bytes
        back = {"x": server.x[halves.size :], "buffers": server.buffers[halves.buffer_size :]}
        down = report.bytes_down - bytes_down(self.work, back, {}, len(report.clients)) + visits * smashed
        up = report.bytes_up - nbytes(back) * len(heard) + visits * (smashed + federation.pool.bytes_each[1])
        return new, replace(report, bytes_down=down, bytes_up=up)

    def _attempt(self, round: int, server: Server) -> tuple[Server, Report]:
        plan, rule, federation = self.work.plan, self.work.rule, self.work.federation
        cohort = plan.cohort_of(round, len(federation))
        table = timetable(cohort, plan, {client: federation.size(client) for client in cohort})
        fresh = rule.init_client(server.x)
        self.parties.begin(round, {client: self.states.get(client) or fresh for client in cohort})
        tally, now, last = Tally(), server, dict[int, ClientUpdate]()
        for period in table.periods(self.algorithm.sync_steps):
            broadcast = Broadcast(round, plan.rate(round), now.x, now.buffers, rule.down(now.state, round))
            updates, main = self._period(broadcast, table, period)
            last |= updates
            totals = self._sum(broadcast, updates, main, tally)
            now = self._synchronise(broadcast, totals, main, now)
        sums = [last[client].total for client in cohort]
        now = self._after(replace(broadcast, x=server.x), totals, now, last)
        for client in cohort:
            self.states.put(client, last[client].kept, round)
        tally.down += self.shared_data.bytes_down(cohort)
        loss = sum(one.loss for one in sums) / sum(one.visits for one in sums)
        return now, Report(round, cohort, [], broadcast.lr, loss, tally.down, tally.up)

    def _period(
        self, broadcast: Broadcast, table: Timetable, period: range
    ) -> tuple[dict[int, ClientUpdate], MainUpdate]:
        """From one synchronisation to the next: all steps."""
        plan = self.work.plan
        self.parties.open(broadcast, table.acting(period))
        order = random_order(plan.seed, broadcast.round, list(table.batches))
        rate = self.algorithm.main_rate(plan.rates, broadcast.round, plan.rounds)
        for group in self.algorithm.turns(table, period, order):
            weights = [self._weight(client) for client in group]
            self.parties.turn(group, [weight / sum(weights) for weight in weights], rate)
        return self.parties.close()

    def _weight(self, client: int) -> float:
        return self.work.plan.weight(self.work.federation.size(client))

    def _sum(self, broadcast: Broadcast, updates: dict[int, ClientUpdate], main: MainUpdate, tally: Tally) -> Totals:
        """The clients' updates, summed in the order of the cohort; counts what was sent."""
        tally.down += self._front_down(broadcast, len(updates))
        totals: Totals | None = None
        with self.worker.clock("aggregation"):
            for client, update in updates.items():
                out = self._outcome(broadcast, client, update, main)
                tally.up += nbytes({"y": update.y, "buffers": update.buffers, "up": out.up}) + update.tally.up
                tally.down += update.tally.down
                totals = totals or Totals.zero(broadcast, out.up)
                totals.add(out, self._weight(client))
                for observe in self.observers:
                    observe(broadcast.round, out, self._weight(client), broadcast.x)
        assert totals is not None, "every period has a step"
        totals.refuse_diverged(broadcast.round)
        return totals

    def _outcome(self, broadcast: Broadcast, client: int, update: ClientUpdate, main: MainUpdate) -> Outcome:
        """A client's update of the whole model."""
        y = torch.cat([update.y, main.copies.get(client, main.weights)])
        buffers = torch.cat([update.buffers, main.statistics.get(client, main.buffers)])
        sums = update.period
        return Outcome(
            client, y - broadcast.x, buffers, update.up, update.kept, sums.loss / sums.visits, sums.visits, update.steps
        )

    def _synchronise(self, broadcast: Broadcast, totals: Totals, main: MainUpdate, server: Server) -> Server:
        """The fed server's step; the main server's part is what its own steps made it."""
        x, state = self.server_step.step(self.server_step.at(broadcast, totals, server))
        if not self.algorithm.copies:
            x[self.parts.halves.size :] = main.weights
        buffers = totals.buffers / totals.weight
        if self.algorithm.joint:
            buffers[self.parts.halves.buffer_size :] = main.buffers
        return Server(x, buffers, state)

    def _after(self, broadcast: Broadcast, totals: Totals, now: Server, last: dict[int, ClientUpdate]) -> Server:
        """What acts on the whole model after the round's last synchronisation (server learning)."""
        at = self.server_step.at(broadcast, totals, now)
        at = replace(
            at,
            mean_steps=sum(update.total.steps for update in last.values()) / len(last),
            mean_visits=sum(update.total.visits for update in last.values()) / len(last),
            learn=replace(at.learn, buffers=now.buffers),  # type: ignore[type-var]
        )
        return replace(now, x=self.server_step.after(now.x, at))

    def _front_down(self, broadcast: Broadcast, clients: int) -> int:
        """The clients' part and the rules' messages; a tracked rule's followers hear every broadcast."""
        halves = self.parts.halves
        front = {"x": broadcast.x[: halves.size], "buffers": broadcast.buffers[: halves.buffer_size]}
        return bytes_down(self.work, front, broadcast.down, clients)


def timetable(cohort: list[int], plan: Plan, sizes: dict[int, int]) -> Timetable:
    """The timetable of a round; with ``local_steps`` all clients make equally many steps."""
    if plan.local_steps is not None:
        return Timetable(dict.fromkeys(cohort, plan.local_steps), 1)
    batches = {client: plan.batches_a_pass(n) for client, n in sizes.items()}
    return Timetable(batches, plan.local_epochs)


def random_order(seed: int, round: int, cohort: list[int]) -> list[int]:
    """The order in which SFL-V2's main server sees the clients of a round: from the seed alone."""
    return [int(client) for client in stream(seed, "main-order", round).permutation(cohort)]
