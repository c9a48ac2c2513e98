"""Worker processes on this machine: forked, one thread each, messages in shared memory.

The pool of data is inherited by the fork. The server model, messages and what clients keep travel through slots of
anonymous shared memory that are used over and over; pipes carry only small tuples. Clients that take a few
milliseconds are handed out several at a time, so that nobody waits for messages. Outcomes are handed on in the order
of the cohort, so sums, and with them all bits, do not depend on the number of workers. A worker that dies, or that is
stopped or stuck (it has work and computes nothing), is replaced and its tasks done again. Evaluation is cut into fixed
chunks that fill the time in which workers would wait.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import select
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import accumulate
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any

from torch import Tensor

from undrift.core.processes import die_with, processor_time
from undrift.core.signals import impatient
from undrift.core.tree import Tree, copy_into
from undrift.engines.local_worker import Failure, Memory, serve
from undrift.errors import RunError
from undrift.rounds.engine import Pending
from undrift.rounds.evaluation import Scores, in_order, pieces
from undrift.rounds.messages import Broadcast, ClientTask, Lost, Outcome
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker

_AHEAD = 2
"""Tasks that wait in a worker's pipe, so that it never waits for the next one."""
_UNATTENDED = 32
"""Chunks of an evaluation that a worker is given at once while the driver is busy."""
_SHORT, _LONG = 0.010, 0.040
"""Clients below so many seconds are handed out several at a time, but not more than so many seconds at once."""
_FIRST = 0.75
"""Of what is left to do, the share that is handed out next: the rest evens out who is slower."""
_DEATHS = 20
"""More deaths of workers than this end the run."""
_LOOK = 1.0
"""Seconds from one look at workers that do not answer to the next."""
TIMEOUT = 300.0
"""Seconds after which a worker that has work and computes nothing is replaced."""


class _Process:
    """One worker process and the tasks that it has been given."""

    def __init__(self, work: Work, memory: Memory, others: list[_Process]) -> None:
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

    def _begin(self, parent: int, theirs: Connection, work: Work, memory: Memory, others: list[_Process]) -> None:
        die_with(parent)
        # A forked worker inherits the driver's ends of all pipes; while it holds them, nobody sees an end of file.
        for process in (self, *others):
            process.pipe.close()
        serve(theirs, work, memory)

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
        self.memory = Memory(work, worker, workers)
        self.slots = self.memory.count
        self.processes: list[_Process] = []
        self._answers = select.poll()
        for _ in range(workers):
            self._start()
        self.deaths = 0
        self._tasks: dict[int, tuple[Any, ...]] = {}
        self._posted: dict[int, list[tuple[int, int, int]]] = {}
        """Of every task with clients: who they are, the slots of their outcomes and of what they have kept."""
        self._done: dict[int, Any] = {}
        self._urgent: deque[int] = deque()
        self._spare: deque[int] = deque()
        self._number = 0
        self._evaluation = 0
        self._seconds: float | None = None
        """What a client takes."""
        self.parts = len(pieces(work))

    def clients(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> Iterator[Outcome | Lost]:
        """Carry out a round's tasks on the workers; slots of shared memory are used again as outcomes are taken."""
        copy_into(broadcast.tree(), self.memory.broadcast)
        common = _common(tasks)
        copy_into(common, self.memory.before[-1])
        groups = self._groups(tasks)
        numbers: list[int] = []
        given = taken = 0
        spent = 0.0
        for position, group in enumerate(groups):
            while len(numbers) < len(groups) and given + len(groups[len(numbers)]) <= taken + self.slots:
                following = groups[len(numbers)]
                numbers.append(self._post(broadcast, following, given, common))
                given += len(following)
            answers, seconds = self._wait_for(numbers[position])
            spent += seconds
            if position == len(groups) - 1:
                self._hand_out_chunks()
            for posted, answer in zip(self._posted.pop(numbers[position]), answers, strict=True):
                yield self._outcome(posted, *answer)
            taken += len(group)
        self._seconds = spent / len(tasks)

    def _groups(self, tasks: Sequence[ClientTask]) -> list[Sequence[ClientTask]]:
        """Clients that are one task: one, or, where they are short, several neighbours."""
        each, workers = self._seconds, len(self.processes)
        if each is None or each > _SHORT:
            return [tasks[position : position + 1] for position in range(len(tasks))]
        plan, federation = self.work.plan, self.work.federation
        steps = [plan.steps(federation.size(task.client)) for task in tasks]
        most = min(math.ceil(_LONG / max(each, 1e-6)), self.slots // workers)
        return [tasks[part] for part in shares(steps, workers, most)]

    def _outcome(self, posted: tuple[int, int, int], loss: float, visits: int, steps: int, finite: bool) -> Outcome:
        client, slot, _ = posted
        place, kept = self.memory.outcomes[slot], self.memory.after[slot]
        return Outcome(client, place["delta"], place["buffers"], place["up"], kept, loss, visits, steps, finite)

    def _post(self, broadcast: Broadcast, group: Sequence[ClientTask], first: int, common: Tree) -> int:
        """Hand a task out; the outcomes get slots from ``first`` on, round and round."""
        posted = [self._place(task, (first + place) % self.slots, common) for place, task in enumerate(group)]
        number = self._new(("clients", broadcast.round, broadcast.lr, posted))
        self._posted[number] = posted
        self._urgent.append(number)
        self._feed()
        return number

    def _place(self, task: ClientTask, slot: int, common: Tree) -> tuple[int, int, int]:
        """Put what a client has kept where its worker finds it."""
        if task.kept is common:
            return task.client, slot, self.slots
        copy_into(task.kept, self.memory.before[slot])
        return task.client, slot, slot

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
                ready = {descriptor for descriptor, _ in self._answers.poll(1000 * _LOOK)}
            if not ready:
                self._look_after_workers()
            for process in list(self.processes):
                if process.pipe.fileno() in ready:
                    self._receive(process)
        self._tasks.pop(number)
        answer = self._done.pop(number)
        if isinstance(answer, Failure):
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
        self._answers.unregister(dead.pipe)
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
        self._start()

    def _start(self) -> None:
        self.processes.append(_Process(self.work, self.memory, self.processes))
        self._answers.register(self.processes[-1].pipe, select.POLLIN)

    def close(self) -> None:
        """End the workers."""
        for process in self.processes:
            process.stop(0.0 if process.tasks else 5.0)  # who still has work was given up
        self.processes.clear()


def _common(tasks: Sequence[ClientTask]) -> Tree:
    """The state that most clients share: those that are new have the same."""
    counts = Counter(id(task.kept) for task in tasks)
    return max((task.kept for task in tasks), key=lambda kept: counts[id(kept)], default={})


def shares(steps: Sequence[int], workers: int, most: int) -> list[slice]:
    """Neighbours in groups of not more than ``most``: large ones for all workers first, of as many steps each."""
    done, found, start = [0, *accumulate(steps)], list[slice](), 0
    while start < len(steps):
        share = _FIRST * (done[-1] - done[start]) / workers
        for _ in range(workers):
            end = min(max(_nearest(done, done[start] + share), start + 1), start + most, len(steps))
            if start < end:
                found.append(slice(start, end))
            start = end
    return found


def _nearest(ascending: Sequence[int], value: float) -> int:
    """The position of the number that is nearest to ``value``."""
    above = bisect_left(ascending, value)
    nearer = above == len(ascending) or (above and value - ascending[above - 1] < ascending[above] - value)
    return above - bool(nearer)
