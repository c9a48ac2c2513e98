"""What happens in a worker process, and the memory that it shares with the driver."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from torch import Tensor

from undrift.core.numerics import settle
from undrift.core.signals import leave_stopping_to_parent
from undrift.core.tree import Packing, copy_into
from undrift.core.trouble import describe
from undrift.engines.serial import carried_out
from undrift.engines.shared_memory import slots
from undrift.errors import UndriftError
from undrift.rounds.evaluation import pieces
from undrift.rounds.messages import Broadcast, ClientTask
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker

_PLACES = 32 << 20
"""Bytes of shared memory for outcomes that wait for their turn (more, where a few of them take more)."""


class Memory:
    """The memory that driver and workers share, and how messages lie in it."""

    def __init__(self, work: Work, worker: Worker, workers: int) -> None:
        x, buffers = worker.model.weights, worker.model.buffers
        messages = worker.messages()
        (self.broadcast,) = slots(messages.down, 1)
        (self.model,) = slots(Packing.of({"x": x, "buffers": buffers}), 1)
        up = messages.up
        population = len(work.federation)
        cohort = min(work.plan.cohort or population, population)
        self.count = max(4 * workers, min(cohort, _PLACES // max(1, up.size * up.dtype.itemsize)))
        """How many clients may be under way: each has a slot for what it sends, and two for what it keeps."""
        self.outcomes = slots(up, self.count)
        self.before = slots(messages.kept, self.count + 1)
        """What clients have kept so far; the last one is for what several of them share."""
        self.after = slots(messages.kept, self.count)
        """What they keep from now on; a client that has to be run again finds what it kept untouched."""


def serve(pipe: Connection, work: Work, memory: Memory) -> None:
    """A worker's life: take a task, do it, say so."""
    leave_stopping_to_parent()
    settle()
    worker = Worker(work)
    parts = pieces(work)
    loaded = -1
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):  # who gave the work is gone
            return
        try:
            if task[0] == "clients":
                _, number, round, lr, clients = task
                loaded = -1
                answer = _clients(worker, memory, Broadcast(round, lr, **memory.broadcast), clients)
            else:
                _, number, evaluation, part = task
                if loaded != evaluation:
                    worker.model.load(memory.model["x"], memory.model["buffers"])
                    loaded = evaluation
                answer = worker.evaluate(parts[part]).plain()
        except UndriftError as error:
            answer = Failure(str(error))
        except Exception as error:
            answer = Failure(f"evaluation: {describe(error)}")
        with contextlib.suppress(OSError):
            pipe.send((number, answer, worker.clock.take()))


@dataclass(frozen=True)
class Failure:
    """An error inside a task, to be raised where the task's answer is taken."""

    message: str


def _clients(worker: Worker, memory: Memory, broadcast: Broadcast, clients: Sequence[tuple[Any, ...]]) -> Any:
    """Some clients' rounds, one after the other, and the seconds that they took."""
    start = time.thread_time()
    answers = [_client(worker, memory, broadcast, *client) for client in clients]
    return answers, time.thread_time() - start


def _client(worker: Worker, memory: Memory, broadcast: Broadcast, client: int, slot: int, before: int) -> Any:
    place = memory.outcomes[slot]
    here = place["delta"] if isinstance(place["delta"], Tensor) else None
    send = {} if worker.work.rule.encoders else place["up"]
    task = ClientTask(client, memory.before[before], send, memory.after[slot])
    out = carried_out(worker, broadcast, task, here)
    copy_into(out.besides(here), place)
    copy_into(out.kept, task.keep)
    loss = float(out.loss)
    finite = here is None or (math.isfinite(loss) and math.isfinite(float(here.dot(here))))  # while it is at hand
    return loss, out.visits, out.steps, finite
