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
from undrift.core.tree import Packing, Tree, copy_into, nbytes
from undrift.core.trouble import describe
from undrift.engines.serial import carried_out
from undrift.engines.shared_memory import Slots, shared_memory
from undrift.errors import UndriftError
from undrift.rounds.evaluation import pieces
from undrift.rounds.messages import Broadcast, ClientTask
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker

_PLACES = 32 << 20
"""Bytes of shared memory for outcomes that wait for their turn (more, where a few of them take more)."""
_ROOM = 1 << 30
"""Bytes of shared memory for what clients keep; the rest lies in the driver's own and is copied when needed."""


class Memory:
    """The memory that driver and workers share, and how messages lie in it."""

    def __init__(self, work: Work, worker: Worker, workers: int) -> None:
        x, buffers = worker.model.weights, worker.model.buffers
        messages = worker.messages()
        self.broadcast = _place(messages.down)
        self.model = _place(Packing.of({"x": x, "buffers": buffers}))
        up = messages.up
        population, each = len(work.federation), nbytes(messages.kept.like)
        cohort = min(work.plan.cohort or population, population)
        count = max(4 * workers, min(cohort, _PLACES // max(1, up.size * up.dtype.itemsize)))
        self.outcomes = [up.unpack(part) for part in shared_memory(count * up.size, up.dtype).view(count, -1)]
        self.nothing = None if each else messages.kept.like
        """What clients keep, where that is nothing."""
        most = population + cohort  # old states stay until a round has ended
        room = min(_ROOM // each, most) if each else 0
        self.reserve = 2 * count + 2  # of those under way: what they kept and what they keep now
        self.states = Slots(messages.kept, self.reserve + (room and room + self.reserve))


def _place(packing: Packing) -> Tree:
    """A tree in shared memory."""
    return packing.unpack(shared_memory(packing.size, packing.dtype))


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


def _client(
    worker: Worker, memory: Memory, broadcast: Broadcast, client: int, slot: int, old: int | None, new: int | None
) -> Any:
    place = memory.outcomes[slot]
    here = place["delta"] if isinstance(place["delta"], Tensor) else None
    task = ClientTask(client, (memory.nothing or {}) if old is None else memory.states.at(old))
    task.send = {} if worker.work.rule.encoders else place["up"]
    task.keep = {} if new is None else memory.states.at(new)
    out = carried_out(worker, broadcast, task, here)
    copy_into(out.besides(here), place)
    if new is not None:
        copy_into(out.kept, task.keep)
    loss = float(out.loss)
    finite = here is None or (math.isfinite(loss) and math.isfinite(float(here.dot(here))))  # while it is at hand
    return loss, out.visits, out.steps, finite
