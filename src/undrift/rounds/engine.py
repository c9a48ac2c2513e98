"""The seam between the loop over rounds and what carries a round out: one small interface for engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from torch import Tensor

from undrift.rounds.evaluation import Scores
from undrift.rounds.messages import Broadcast, ClientTask, Lost, Outcome
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker

Pending = Callable[[], Scores]
"""An evaluation under way; calling it waits for the result."""


class Engine(Protocol):
    """Runs clients and evaluations. Outcomes come in the order of the tasks, valid until the next is taken."""

    @property
    def eager(self) -> bool:
        """Whether an evaluation is finished when :meth:`evaluate` returns."""
        ...

    def clients(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> Iterator[Outcome | Lost]:
        """Carry out a round's tasks."""
        ...

    def evaluate(self, x: Tensor, buffers: Tensor) -> Pending:
        """Evaluate a server model on all evaluation data, now or while other work goes on."""
        ...

    def close(self) -> None:
        """Give back what the engine holds."""
        ...


MakeEngine = Callable[[Work, Worker, int | None], Engine]
"""Makes the engine of a run: for this work, with the driver's own worker, on so many workers (None: what pays off)."""
