"""Which clients of a cohort act in which step of a round, and when their parts are synchronised."""

from __future__ import annotations

import math
from dataclasses import dataclass

from undrift.federation import Federation
from undrift.plan import Plan


@dataclass(frozen=True)
class Timetable:
    """Steps of a round, counted over the cohort: an epoch is as long as the longest of its clients'.

    Clients with fewer batches stop earlier in an epoch.
    """

    batches: dict[int, int]
    """Each client's number of batches in an epoch, in the order of the cohort."""
    epochs: int

    @staticmethod
    def of(cohort: list[int], federation: Federation, plan: Plan) -> Timetable:
        """The timetable of a round; with ``local_steps`` all clients walk equally far."""
        if plan.local_steps is not None:
            return Timetable(dict.fromkeys(cohort, plan.local_steps), 1)
        sizes = {client: federation.size(client) for client in cohort}
        batches = {client: math.ceil(n / (plan.batch_size or n)) for client, n in sizes.items()}
        return Timetable(batches, plan.local_epochs)

    def acts(self, client: int, step: int) -> bool:
        """Whether a client has a batch for this step of the round."""
        return step % max(self.batches.values()) < self.batches[client]

    def periods(self, sync_steps: int | None) -> list[range]:
        """The steps between synchronisations; the round's end is always one."""
        steps = self.epochs * max(self.batches.values())
        size = sync_steps or steps
        return [range(first, min(first + size, steps)) for first in range(0, steps, size)]

    def acting(self, period: range) -> dict[int, int]:
        """The clients that act in a period, and how many steps each makes there."""
        counts = {client: sum(self.acts(client, step) for step in period) for client in self.batches}
        return {client: count for client, count in counts.items() if count}
