"""Worker processes on this machine: forked, one thread each, messages in shared memory.

The pool of data is inherited by the fork. The server model, messages and client memories lie in anonymous
shared memory; pipes carry only small tuples. Outcomes are handed on in the order of the cohort, so
sums, and with them all bits, do not depend on the number of workers. A worker that dies is replaced and its
task done again. Evaluation is cut into fixed chunks that fill the time in which workers would wait.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from undrift.engines.arena import Arena, Lodged, shared
from undrift.engines.base import Lost, Pending, Scores, chunks
from undrift.errors import ConfigError, RunError
from undrift.numerics import settle
from undrift.rule import ClientAt
from undrift.tree import Packing, Tree, clone, copy_into, leaves, nbytes
from undrift.worker import Cast, Job, Outcome, Score, Work, Worker

_AHEAD = 2
"""Tasks that wait in a worker's pipe, so that it never waits for the next one."""
_UNATTENDED = 32
"""Chunks of an evaluation that a worker is given at once while the driver is busy."""
_ROOM = 1 << 30
"""Bytes of shared memory for what clients keep; the rest lies in the driver's own and is copied when needed."""
_DEATHS = 20
"""More deaths of workers than this end the run."""


def outcome_like(work: Work, x: Tensor, buffers: Tensor) -> Tree:
    """The tensors that a client's round gives back, found by a dry run of the rule's hooks."""
    state, kept = work.rule.init_server(x), work.rule.init_client(x)
    at = ClientAt(x, work.rule.down(state, 1), kept, 1.0, 1, 1, lambda: torch.zeros_like(x))
    at.local = work.rule.start(at)
    up, kept = work.rule.up(x, at)
    for path, leaf in leaves({"down": at.down, "up": up, "kept": kept}).items():
        if leaf.dtype != x.dtype:
            raise ConfigError(f"rule: {path} is {leaf.dtype}; state and messages must be {x.dtype}, as the model")
    return {"delta": x, "buffers": buffers, "up": up, "kept": kept}


class _Shared:
    """The memory that driver and workers share, and how trees lie in it."""

    def __init__(self, work: Work, worker: Worker, slots: int) -> None:
        x, buffers = worker.model.weights, worker.model.buffers
        state = work.rule.init_server(x)
        self.cast = Packing.of({"x": x, "buffers": buffers, "down": work.rule.down(state, 1)})
        self.model = Packing.of({"x": x, "buffers": buffers})
        like = outcome_like(work, x, buffers)
        kept = like.pop("kept")
        population = len(work.federation)
        most = population + min(work.plan.cohort or population, population)  # old memories stay until a round has ended
        room = min(_ROOM // nbytes(kept), most) if nbytes(kept) else 0
        self.reserve = 2 * slots + 2  # of those under way: what they kept and what they keep now
        self.kept = Arena(Packing.of(kept), self.reserve + (room and room + self.reserve), x.dtype)
        self.outcome = Packing.of(like)
        self.cast_memory = shared(self.cast.size, x.dtype)
        self.model_memory = shared(self.model.size, x.dtype)
        memory = shared(slots * self.outcome.size, x.dtype)
        self.slots = [self.outcome.unpack(part) for part in memory.view(slots, -1)]
        self.cast_views = self.cast.unpack(self.cast_memory)
        self.model_views = self.model.unpack(self.model_memory)


def _serve(pipe: Connection, work: Work, memory: _Shared) -> None:
    """A worker's life: take a task, do it, say so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settle()
    worker = Worker(work)
    sets = work.evaluated()
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
                _, number, evaluation, name, start = task
                if loaded != evaluation:
                    worker.model.load(memory.model_views["x"], memory.model_views["buffers"])
                    loaded = evaluation
                answer = worker.evaluate_chunk(sets[name], start)
        except Exception as error:
            answer = _Failure(f"{type(error).__name__}: {error}")
        with contextlib.suppress(OSError):
            pipe.send((number, answer, worker.clock.take()))


@dataclass(frozen=True)
class _Posted:
    """A client under way: what it kept so far, and where it puts what it keeps now."""

    client: int
    old: Lodged
    new: Lodged


@dataclass(frozen=True)
class _Failure:
    """An error inside a task, to be raised where the task's answer is taken."""

    message: str


def _client(worker: Worker, memory: _Shared, slot: int, old: int, new: int, round: int, lr: float, client: int) -> Any:
    views, place = memory.cast_views, memory.slots[slot]
    cast = Cast(round, lr, views["x"], views["buffers"], views["down"])
    out = worker.client(cast, Job(client, memory.kept.at(old)), place["delta"])
    copy_into({"buffers": out.buffers, "up": out.up}, place)
    copy_into(out.kept, memory.kept.at(new))
    return out.loss, out.visits, out.steps


class _Process:
    """One worker process and the tasks that it has been given."""

    def __init__(self, work: Work, memory: _Shared, others: list[_Process]) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process: ForkProcess = context.Process(
            target=self._begin, args=(theirs, work, memory, others), daemon=True
        )
        self.process.start()
        theirs.close()
        self.tasks: deque[int] = deque()

    def _begin(self, theirs: Connection, work: Work, memory: _Shared, others: list[_Process]) -> None:
        # A forked worker inherits the driver's ends of all pipes; while it holds them, nobody sees an end of file.
        for process in (self, *others):
            process.pipe.close()
        _serve(theirs, work, memory)

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


class Local:
    """A pool of worker processes."""

    def __init__(self, work: Work, worker: Worker, workers: int) -> None:
        self.work = work
        self.clock = worker.clock
        self.slot_count = 4 * workers
        self.memory = _Shared(work, worker, self.slot_count)
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

    def clients(self, cast: Cast, jobs: Sequence[Job]) -> Iterator[Outcome | Lost]:
        """Carry out a round's jobs on the workers; slots of shared memory are used again as outcomes are taken."""
        self.memory.cast.pack({"x": cast.x, "buffers": cast.buffers, "down": cast.down}, self.memory.cast_memory)
        held = WeakValueDictionary[int, Lodged]()
        numbers: list[int] = []
        for position, job in enumerate(jobs):
            while len(numbers) < min(len(jobs), position + self.slot_count):
                numbers.append(self._post(cast, jobs[len(numbers)], len(numbers) % self.slot_count, held))
            loss, visits, steps = self._wait_for(numbers[position])
            place = self.memory.slots[position % self.slot_count]
            kept = self._posted.pop(numbers[position]).new
            if position == len(jobs) - 1:
                self._hand_out_chunks()
            yield Outcome(
                job.client, place["delta"], place["buffers"], place["up"], self._room_for(kept), loss, visits, steps
            )

    def _post(self, cast: Cast, job: Job, slot: int, held: WeakValueDictionary[int, Lodged]) -> int:
        kept = self.memory.kept
        old = held.get(id(job.kept)) or kept.hold(job.kept)  # clients that are new share one memory
        held[id(job.kept)], new = old, kept.lodge()
        number = self._new(("client", slot, old.place, new.place, cast.round, cast.lr, job.client))
        self._posted[number] = _Posted(job.client, old, new)
        self._urgent.append(number)
        self._feed()
        return number

    def _room_for(self, kept: Lodged) -> Tree:
        """What a client keeps, out of shared memory where that is needed for the clients to come."""
        return kept if len(self.memory.kept.free) > self.memory.reserve else clone(kept)

    def evaluate(self, x: Tensor, buffers: Tensor) -> Pending:
        """Queue an evaluation behind the clients' work."""
        self._evaluation += 1
        self.memory.model.pack({"x": x, "buffers": buffers}, self.memory.model_memory)
        pieces = [(name, self._new(("chunk", self._evaluation, name, start))) for name, start in chunks(self.work)]
        self._spare.extend(number for _, number in pieces)
        self._feed()

        def result() -> Scores:
            scores: Scores = {}
            for name, number in pieces:
                scores[name] = scores.get(name, Score()) + self._wait_for(number)
            return scores

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
            self._feed()
            with self.clock("waiting"):
                ready = wait([process.pipe for process in self.processes])
            for process in list(self.processes):
                if process.pipe in ready:
                    self._receive(process)
        self._tasks.pop(number)
        answer = self._done.pop(number)
        if isinstance(answer, _Failure):
            posted = self._posted.get(number)
            raise RunError(f"{f'client {posted.client}' if posted else 'evaluation'}: {answer.message}")
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

    def _replace(self, dead: _Process) -> None:
        self.deaths += 1
        if self.deaths > _DEATHS:
            raise RunError(
                f"worker processes died {self.deaths} times; the last with exit code {dead.process.exitcode}"
            )
        dead.stop()
        self.processes.remove(dead)
        for number in reversed(dead.tasks):
            queue = self._urgent if number in self._posted else self._spare
            queue.appendleft(number)
        self.processes.append(_Process(self.work, self.memory, self.processes))

    def close(self) -> None:
        """End the workers."""
        for process in self.processes:
            process.stop()
        self.processes.clear()
