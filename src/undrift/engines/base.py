"""The seam between a run and what carries it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from undrift.errors import RunError, UndriftError
from undrift.worker import EVALUATION_BATCH, Cast, Job, Outcome, Score, Work, Worker


@dataclass
class Lost:
    """A client that did not answer, or whose answer was refused."""

    client: int
    reason: str


Scores = dict[str, Score]
Pending = Callable[[], Scores]
"""An evaluation under way; calling it waits for the result."""


class Engine(Protocol):
    """Runs clients and evaluations. Outcomes come in the order of the jobs, valid until the next is taken."""

    def clients(self, cast: Cast, jobs: Sequence[Job]) -> Iterator[Outcome | Lost]:
        """Carry out a round's jobs."""
        ...

    def evaluate(self, x: Tensor, buffers: Tensor) -> Pending:
        """Evaluate a server model on all evaluation data, now or while other work goes on."""
        ...

    def close(self) -> None:
        """Give back what the engine holds."""
        ...


def done(worker: Worker, cast: Cast, job: Job, delta: Tensor | None = None) -> Outcome:
    """A job's outcome; an error says at which client it happened."""
    try:
        return worker.client(cast, job, delta)
    except UndriftError:
        raise
    except Exception as error:
        raise RunError(f"client {job.client}: {type(error).__name__}: {error}") from error


class Serial:
    """Everything in this process, one client after the other."""

    def __init__(self, work: Work, worker: Worker | None = None) -> None:
        self.worker = worker or Worker(work)

    def clients(self, cast: Cast, jobs: Sequence[Job]) -> Iterator[Outcome | Lost]:
        """Carry out a round's jobs, one by one."""
        for job in jobs:
            yield done(self.worker, cast, job)

    def evaluate(self, x: Tensor, buffers: Tensor) -> Pending:
        """Evaluate at once."""
        scores = {name: self.worker.evaluate(x, buffers, pair) for name, pair in self.worker.work.evaluated().items()}
        return lambda: scores

    def close(self) -> None:
        """Nothing to give back."""


def chunks(work: Work) -> list[tuple[str, int]]:
    """The fixed pieces that an evaluation is made of: (name of the set, first row)."""
    return [
        (name, start)
        for name, (_, labels) in work.evaluated().items()
        for start in range(0, len(labels), EVALUATION_BATCH)
    ]
