"""Worker processes on this machine: forked, one thread each, messages in shared memory.

The pool of data is inherited by the fork. The server model, messages and client memories lie in anonymous
shared memory; pipes carry only small tuples. Outcomes are handed on in the order of the cohort, so
sums, and with them all bits, do not depend on the number of workers. A worker that dies, or that is stopped or stuck
(it has work and computes nothing), is replaced and its tasks done again. Evaluation is cut into fixed chunks that fill
the time in which workers would wait.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any
from weakref import WeakValueDictionary

from torch import Tensor

from undrift.core.numerics import settle
from undrift.core.processes import die_with, processor_time
from undrift.core.signals import impatient, leave_stopping_to_parent
from undrift.core.tree import Packing, Tree, clone, copy_into, nbytes
from undrift.core.trouble import describe
from undrift.engines.serial import carried_out
from undrift.engines.shared_memory import Slots, SlotTree, shared_memory
from undrift.errors import RunError, UndriftError
from undrift.rounds.engine import Pending
from undrift.rounds.evaluation import Scores, in_order, pieces
from undrift.rounds.messages import Broadcast, ClientTask, Lost, Outcome
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker

_AHEAD = 2
"""Tasks that wait in a worker's pipe, so that it never waits for the next one."""
_UNATTENDED = 32
"""Chunks of an evaluation that a worker is given at once while the driver is busy."""
_ROOM = 1 << 30
"""Bytes of shared memory for what clients keep; the rest lies in the driver's own and is copied when needed."""
_DEATHS = 20
"""More deaths of workers than this end the run."""
_LOOK = 1.0
"""Seconds from one look at workers that do not answer to the next."""
TIMEOUT = 300.0
"""Seconds after which a worker that has work and computes nothing is replaced."""


class _Memory:
    """The memory that driver and workers share, and how messages lie in it."""

    def __init__(self, work: Work, worker: Worker, count: int) -> None:
        x, buffers = worker.model.weights, worker.model.buffers
        messages = worker.messages()
        self.broadcast = _place(messages.down)
        self.model = _place(Packing.of({"x": x, "buffers": buffers}))
        up = messages.up
        self.outcomes = [up.unpack(part) for part in shared_memory(count * up.size, up.dtype).view(count, -1)]
        population, each = len(work.federation), nbytes(messages.kept.like)
        most = population + min(work.plan.cohort or population, population)  # old states stay until a round has ended
        room = min(_ROOM // each, most) if each else 0
        self.reserve = 2 * count + 2  # of those under way: what they kept and what they keep now
        self.states = Slots(messages.kept, self.reserve + (room and room + self.reserve))


def _place(packing: Packing) -> Tree:
    """A tree in shared memory."""
    return packing.unpack(shared_memory(packing.size, packing.dtype))


def _serve(pipe: Connection, work: Work, memory: _Memory) -> None:
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
            if task[0] == "client":
                _, number, slot, old, new, round, lr, client = task
                loaded = -1
                answer = _client(worker, memory, slot, old, new, round, lr, client)
            else:
                _, number, evaluation, part = task
                if loaded != evaluation:
                    worker.model.load(memory.model["x"], memory.model["buffers"])
                    loaded = evaluation
                answer = worker.evaluate(parts[part]).plain()
        except UndriftError as error:
            answer = _Failure(str(error))
        except Exception as error:
            answer = _Failure(f"evaluation: {describe(error)}")
        with contextlib.suppress(OSError):
            pipe.send((number, answer, worker.clock.take()))


@dataclass(frozen=True)
class _Posted:
    """A client under way: what it kept so far, and where it puts what it keeps now."""

    client: int
    old: SlotTree
    new: SlotTree


@dataclass(frozen=True)
class _Failure:
    """An error inside a task, to be raised where the task's answer is taken."""

    message: str


def _client(worker: Worker, memory: _Memory, slot: int, old: int, new: int, round: int, lr: float, client: int) -> Any:
    place = memory.outcomes[slot]
    broadcast = Broadcast(round, lr, **memory.broadcast)
    here = place["delta"] if isinstance(place["delta"], Tensor) else None
    out = carried_out(worker, broadcast, ClientTask(client, memory.states.at(old)), here)
    copy_into(out.besides(here), place)
    copy_into(out.kept, memory.states.at(new))
    return float(out.loss), out.visits, out.steps


class _Process:
    """One worker process and the tasks that it has been given."""

    def __init__(self, work: Work, memory: _Memory, others: list[_Process]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process: ForkProcess = context.Process(
            target=self._begin, args=(os.getpid(), theirs, work, memory, others), daemon=True
        )
        self.process.start()
        theirs.close()
        self.tasks: deque[int] = deque()
        self.idle = 0.0
        self._computed: int | None = None
        self._looked = time.monotonic()

    def _begin(self, parent: int, theirs: Connection, work: Work, memory: _Memory, others: list[_Process]) -> None:
        die_with(parent)
        # A forked worker inherits the driver's ends of all pipes; while it holds them, nobody sees an end of file.
        for process in (self, *others):
            process.pipe.close()
        _serve(theirs, work, memory)

    def look(self) -> float:
        """For how long it has had work and computed nothing, as far as the system tells."""
        computed, now = processor_time(self.process.pid or 0), time.monotonic()
        if not self.tasks or computed is None or computed != self._computed:
            self.idle = 0.0
        else:  # where all of us were stopped, the time between two looks says nothing
            self.idle += min(now - self._looked, 2 * _LOOK)
        self._computed, self._looked = computed, now
        return self.idle

    def stop(self, patience: float = 5.0) -> None:
        self.pipe.close()
        self.process.join(timeout=patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Local:
    """A pool of worker processes."""

    eager = False

    def __init__(self, work: Work, worker: Worker, workers: int, timeout: float = TIMEOUT) -> None:
        self.work, self.timeout = work, timeout
        self.clock = worker.clock
        self.slot_count = 4 * workers
        self.memory = _Memory(work, worker, self.slot_count)
        self.processes: list[_Process] = []
        for _ in range(workers):
            self.processes.append(_Process(work, self.memory, self.processes))
        self.deaths = 0
        self._tasks: dict[int, tuple[Any, ...]] = {}
        self._posted: dict[int, _Posted] = {}
        self._done: dict[int, Any] = {}
        self._urgent: deque[int] = deque()
        self._spare: deque[int] = deque()
        self._number = 0
        self._evaluation = 0
        self.parts = len(pieces(work))

    def clients(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> Iterator[Outcome | Lost]:
        """Carry out a round's tasks on the workers; slots of shared memory are used again as outcomes are taken."""
        copy_into(broadcast.tree(), self.memory.broadcast)
        held = WeakValueDictionary[int, SlotTree]()
        numbers: list[int] = []
        for position, task in enumerate(tasks):
            while len(numbers) < min(len(tasks), position + self.slot_count):
                numbers.append(self._post(broadcast, tasks[len(numbers)], len(numbers) % self.slot_count, held))
            loss, visits, steps = self._wait_for(numbers[position])
            place = self.memory.outcomes[position % self.slot_count]
            kept = self._posted.pop(numbers[position]).new
            if position == len(tasks) - 1:
                self._hand_out_chunks()
            yield Outcome(
                task.client, place["delta"], place["buffers"], place["up"], self._room_for(kept), loss, visits, steps
            )

    def _post(self, broadcast: Broadcast, task: ClientTask, slot: int, held: WeakValueDictionary[int, SlotTree]) -> int:
        states = self.memory.states
        old = held.get(id(task.kept)) or states.hold(task.kept)  # clients that are new share one state
        held[id(task.kept)], new = old, states.allocate()
        number = self._new(("client", slot, old.number, new.number, broadcast.round, broadcast.lr, task.client))
        self._posted[number] = _Posted(task.client, old, new)
        self._urgent.append(number)
        self._feed()
        return number

    def _room_for(self, kept: SlotTree) -> Tree:
        """What a client keeps, out of shared memory where that is needed for the clients to come."""
        return kept if len(self.memory.states.free) > self.memory.reserve else clone(kept)

    def evaluate(self, x: Tensor, buffers: Tensor) -> Pending:
        """Queue an evaluation behind the clients' work."""
        self._evaluation += 1
        copy_into({"x": x, "buffers": buffers}, self.memory.model)
        numbers = [self._new(("chunk", self._evaluation, part)) for part in range(self.parts)]
        self._spare.extend(numbers)
        self._feed()

        def result() -> Scores:
            return in_order(self.work, [self._wait_for(number) for number in numbers])

        return result

    def _new(self, task: tuple[Any, ...]) -> int:
        self._number += 1
        self._tasks[self._number] = (task[0], self._number, *task[1:])
        return self._number

    def _feed(self) -> None:
        """Keep every worker's pipe filled: clients first; chunks of an evaluation only where a worker has nothing."""
        for ahead in range(_AHEAD):
            for process in self.processes:
                if self._urgent and len(process.tasks) <= ahead:
                    self._give(process, self._urgent)
                elif self._spare and not process.tasks:
                    self._give(process, self._spare)

    def _hand_out_chunks(self) -> None:
        """All clients are done: chunks of an evaluation fill the time of the server step, unattended.

        Not too many: while nobody reads the answers, full pipes would make both sides wait for each other.
        """
        for process in self.processes:
            while self._spare and len(process.tasks) < _UNATTENDED:
                self._give(process, self._spare)

    def _give(self, process: _Process, queue: deque[int]) -> None:
        number = queue.popleft()
        process.tasks.append(number)
        # Sending to a dead worker fails; its death is handled where answers are received.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.pipe.send(self._tasks[number])

    def _wait_for(self, number: int) -> Any:
        while number not in self._done:
            if impatient():  # a stop was asked for, and what it waits for takes long
                raise KeyboardInterrupt
            self._feed()
            with self.clock("waiting"):
                ready = wait([process.pipe for process in self.processes], _LOOK)
            if not ready:
                self._look_after_workers()
            for process in list(self.processes):
                if process.pipe in ready:
                    self._receive(process)
        self._tasks.pop(number)
        answer = self._done.pop(number)
        if isinstance(answer, _Failure):
            raise RunError(answer.message)
        return answer

    def _receive(self, process: _Process) -> None:
        try:
            number, result, seconds = process.pipe.recv()
        except (EOFError, OSError):
            self._replace(process)
            return
        self.clock.merge(seconds)
        process.tasks.remove(number)
        self._done[number] = result

    def _look_after_workers(self) -> None:
        """Nobody answered for a while: replace who is stopped or stuck."""
        for process in list(self.processes):
            if process.look() > self.timeout:
                process.process.kill()
                self._replace(process)

    def _replace(self, dead: _Process) -> None:
        self.deaths += 1
        dead.stop()
        if self.deaths > _DEATHS:
            raise RunError(
                f"worker processes died or were stuck {self.deaths} times; the last with exit code "
                f"{dead.process.exitcode}"
            )
        self.processes.remove(dead)
        for number in reversed(dead.tasks):
            queue = self._urgent if number in self._posted else self._spare
            queue.appendleft(number)
        self.processes.append(_Process(self.work, self.memory, self.processes))

    def close(self) -> None:
        """End the workers."""
        for process in self.processes:
            process.stop(0.0 if process.tasks else 5.0)  # who still has work was given up
        self.processes.clear()
