"""Chooses the local engine: worker processes where they pay off, this process where they do not."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from undrift.engines.local import TIMEOUT, Local
from undrift.engines.serial import Serial, carried_out
from undrift.rounds.engine import Engine, Pending
from undrift.rounds.messages import Broadcast, ClientTask, Lost, Outcome
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker

_TOO_SHORT = 0.010
"""A round (or evaluation) below so many seconds is not worth handing over to processes."""


class Auto:
    """Runs the first round in this process, looks at the clock, and starts workers only if they would help."""

    def __init__(self, work: Work, worker: Worker, workers: int, timeout: float = TIMEOUT) -> None:
        self.work, self.worker, self.workers, self.timeout = work, worker, workers, timeout
        self.engine: Engine = Serial(work, worker)
        self._decided = False
        self._evaluation = 0.0

    def clients(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> Iterator[Outcome | Lost]:
        """Carry out a round's tasks."""
        if self._decided:
            yield from self.engine.clients(broadcast, tasks)
            return
        start = time.perf_counter()
        yield carried_out(self.worker, broadcast, tasks[0])
        first = time.perf_counter() - start
        self._decided = broadcast.round > 1
        work = first * (len(tasks) if len(tasks) > 1 else 0) + self._evaluation
        if self._decided and work > _TOO_SHORT:
            self.engine = Local(self.work, self.worker, self.workers, self.timeout)
        yield from self.engine.clients(broadcast, tasks[1:])

    def evaluate(self, x: Tensor, buffers: Tensor) -> Pending:
        """Evaluate a server model."""
        start = time.perf_counter()
        pending = self.engine.evaluate(x, buffers)
        self._evaluation = time.perf_counter() - start
        return pending

    @property
    def eager(self) -> bool:
        """As the engine in use."""
        return self.engine.eager

    def close(self) -> None:
        """End the workers, if there are any."""
        self.engine.close()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def engine_for(work: Work, worker: Worker, workers: int | None, timeout: float = TIMEOUT) -> Engine:
    """The engine for so many workers; None: as many as there are cores, if they pay off.

    ``timeout``: seconds after which a worker that has work and computes nothing is replaced.
    """
    forks = "fork" in multiprocessing.get_all_start_methods() and torch.device(work.device).type == "cpu"
    if workers == 0 or not forks:
        return Serial(work, worker)
    if workers is not None:
        return Local(work, worker, workers, timeout)
    return Auto(work, worker, cores(), timeout) if cores() > 1 else Serial(work, worker)
