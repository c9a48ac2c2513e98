"""Everything in this process, one client after the other; and what all engines share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from undrift.core.trouble import describe
from undrift.errors import RunError, UndriftError
from undrift.rounds.engine import Pending
from undrift.rounds.evaluation import added, pieces
from undrift.rounds.messages import Broadcast, ClientTask, Lost, Outcome
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker


def carried_out(worker: Worker, broadcast: Broadcast, task: ClientTask, delta: Tensor | None = None) -> Outcome:
    """A task's outcome; an error says at which client, and where in whose code, it happened."""
    try:
        return worker.client(broadcast, task, delta)
    except UndriftError:
        raise
    except Exception as error:
        raise RunError(f"client {task.client}: {describe(error)}") from error


class Serial:
    """Everything in this process, one client after the other."""

    eager = True

    def __init__(self, work: Work, worker: Worker | None = None) -> None:
        self.worker = worker or Worker(work)

    def clients(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> Iterator[Outcome | Lost]:
        """Carry out a round's tasks, one by one."""
        for task in tasks:
            yield carried_out(self.worker, broadcast, task)

    def evaluate(self, x: Tensor, buffers: Tensor) -> Pending:
        """Evaluate at once."""
        self.worker.model.load(x, buffers)
        scores = added((piece, self.worker.evaluate(piece).plain()) for piece in pieces(self.worker.work))
        return lambda: scores

    def close(self) -> None:
        """Nothing to give back."""
