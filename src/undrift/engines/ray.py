"""Clients on a Ray cluster: the same bits as on this machine's processes, on as many machines as there are.

Data, model and rule go to Ray's object store once; every node fetches them once, and its workers read the data
from the node's shared memory. Messages are flat vectors. What clients keep stays with the driver, so a worker or
a node that dies costs nothing but a repetition of the tasks that it had. Outcomes are handed on in the order of
the cohort, so sums do not depend on who was faster.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import ObjectLostError, RayActorError, RayError, RayTaskError
from torch import Tensor

from undrift.core.numerics import settle
from undrift.core.plugins import own_modules
from undrift.core.signals import impatient
from undrift.core.tree import Packing, Tree, clone, copy_into
from undrift.core.trouble import describe
from undrift.engines.ray_guard import Guard
from undrift.engines.ray_parcel import Array, Parcel, read_only
from undrift.engines.serial import carried_out
from undrift.errors import ConfigError, RunError, UndriftError
from undrift.rounds.engine import Engine, Pending
from undrift.rounds.evaluation import Score, Scores, in_order, pieces
from undrift.rounds.messages import Broadcast, ClientTask, Lost, Outcome
from undrift.rounds.split.parties import ActorLostError
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker

_RETRIES = 20
"""A task whose workers die more often than this ends the run."""
_RETURNED = 64 << 20
"""Bytes that a task may return, unless one client alone has more."""
_LOOK = 1.0
"""Seconds from one look at whether a stop was asked for to the next."""


class _Site:
    """A worker process's own model and view of the data, built when its first task arrives."""

    held: dict[str, _Site] = {}  # noqa: RUF012 - one for each process, on purpose

    def __init__(self, parcel: Parcel) -> None:
        settle()
        self.worker = Worker(parcel.open())
        self.parts = pieces(self.worker.work)
        self.messages = self.worker.messages()

    @staticmethod
    def of(parcels: list[Any]) -> _Site:
        key = parcels[0].hex()
        if key not in _Site.held:
            _Site.held.clear()
            _Site.held[key] = _Site(ray.get(parcels[0]))
        return _Site.held[key]

    def vector(self, array: Array) -> Tensor:
        """A message on the device where the work is done."""
        return read_only(array).to(self.worker.work.device)


def _packed(packing: Packing, tree: Tree) -> Array:
    vector = torch.empty(packing.size, dtype=packing.dtype)
    packing.pack(tree, vector)
    return vector.numpy()


def _clients(
    parcels: list[Any], sent: Array, round: int, lr: float, clients: list[int], states: Array
) -> tuple[Array, Array, list[tuple[float, int, int]]]:
    """Some clients' rounds, one after the other, at a worker: what comes up, what they keep, and numbers."""
    site = _Site.of(parcels)
    messages = site.messages
    broadcast = Broadcast(round, lr, **messages.down.unpack(site.vector(sent)))
    ups = torch.empty((len(clients), messages.up.size), dtype=messages.up.dtype)
    kept = torch.empty((len(clients), messages.kept.size), dtype=messages.kept.dtype)
    facts = []
    for client, up, new, old in zip(clients, ups, kept, site.vector(states), strict=True):
        place = messages.up.unpack(up)
        here = place["delta"] if broadcast.x.is_cpu and isinstance(place["delta"], Tensor) else None
        out = carried_out(site.worker, broadcast, ClientTask(client, messages.kept.unpack(old)), here)
        copy_into(out.besides(here), place)
        messages.kept.pack(out.kept, new)
        facts.append((float(out.loss), out.visits, out.steps))
    return ups.numpy(), kept.numpy(), facts


def _evaluate(parcels: list[Any], model: Array, parts: range) -> list[Score]:
    """Some pieces of an evaluation, at a worker."""
    site = _Site.of(parcels)
    vector, size = site.vector(model), site.worker.model.layout.size
    site.worker.model.load(vector[:size], vector[size:])
    return [site.worker.evaluate(site.parts[part]).plain() for part in parts]


class _Actor:
    """Any object in a process of its own."""

    def __init__(self, parcels: list[Any], kind: type, *arguments: Any) -> None:
        settle()
        self.it = kind(Worker(ray.get(parcels[0]).open()), *arguments)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the object."""
        return getattr(self.it, method)(*arguments)


@dataclass(frozen=True)
class Cluster:
    """Which cluster to use, and what one worker takes of it."""

    address: str | None = None
    """``"auto"`` or ``host:port``: a running cluster; None: one on this machine, ended with the run."""
    cpus_per_worker: float = 1.0
    gpus_per_worker: float = 0.0

    def __call__(self, work: Work, worker: Worker, workers: int | None) -> Engine:
        """The engine of a run on this cluster."""
        return Ray(work, worker, workers, self)

    def join(self, workers: int | None) -> Callable[[], None]:
        """Connect, or start a cluster here; returns how to leave or end it."""
        if ray.is_initialized():
            return lambda: None
        if self.address is not None:
            self._connect(workers)
            return ray.shutdown
        guard = Guard()
        try:
            self._connect(workers)
        except UndriftError:
            guard.close()
            raise

        def end() -> None:
            ray.shutdown()
            guard.close()

        return end

    def _connect(self, workers: int | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's next default; set now, it also keeps Ray from announcing it.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        own: dict[str, Any] = {}
        if self.address is None:
            cpus = None if workers is None else max(1, int(np.ceil(workers * self.cpus_per_worker)))
            own = {"num_cpus": cpus, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        _keep_to_loopback(self.address is None)
        try:
            ray.init(address=self.address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            where = f"engine.address = {self.address!r}" if self.address else "engine.name = 'ray'"
            raise ConfigError(f"{where}: no Ray cluster ({_first_line(error)})") from None
        except Exception as error:  # what Ray raises where it takes too long to start is no more than that
            raise RunError(f"engine.name = 'ray': no Ray cluster ({_first_line(error)})") from None

    def capacity(self) -> int:
        """How many workers the cluster has room for."""
        have: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        room = have.get("CPU", 0.0) / self.cpus_per_worker if self.cpus_per_worker else float("inf")
        if self.gpus_per_worker:
            room = min(room, have.get("GPU", 0.0) / self.gpus_per_worker)
        if room < 1:
            raise ConfigError(
                f"engine: a worker needs {self.cpus_per_worker:g} CPUs and {self.gpus_per_worker:g} GPUs, "
                f"the cluster has {have.get('CPU', 0):g} and {have.get('GPU', 0):g} in all"
            )
        return int(min(room, 10_000))


class Ray:
    """Tasks on a Ray cluster."""

    eager = False

    def __init__(self, work: Work, worker: Worker, workers: int | None, cluster: Cluster) -> None:
        self.worker, self.work = worker, work
        self.messages = worker.messages()
        self._parcels: list[Any] = []
        self._leave = cluster.join(workers)
        try:
            room = cluster.capacity()
        except ConfigError:
            self.close()
            raise
        self.workers = max(1, min(workers or room, room))
        # Where the cluster itself bounds how many run at a time, a queue ahead keeps workers from waiting.
        self.in_flight = 2 * self.workers if self.workers == room else self.workers
        for module in own_modules():
            ray.cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        self._parcels.append(ray.put(Parcel.of(work)))
        task: Any = ray.remote(num_cpus=cluster.cpus_per_worker, num_gpus=cluster.gpus_per_worker, max_retries=_RETRIES)
        self._clients, self._evaluate = task(_clients), task(_evaluate)

    def clients(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> Iterator[Outcome | Lost]:
        """Carry out a round's tasks; never much further ahead than the outcomes that were taken."""
        sent = ray.put(_packed(self.messages.down, broadcast.tree()))
        groups = self._groups(tasks)
        refs: list[Any] = []
        for position, group in enumerate(groups):
            while not self._ready(refs, position, len(groups)):
                refs.append(self._post(sent, broadcast, groups[len(refs)]))
            yield from self._outcomes(group, refs[position])
            refs[position] = None

    def _groups(self, tasks: Sequence[ClientTask]) -> list[Sequence[ClientTask]]:
        """Clients that are one task for Ray: a worker waits some milliseconds between tasks, so they are few."""
        each = sum(part.size * part.dtype.itemsize for part in (self.messages.up, self.messages.kept))
        most = max(1, _RETURNED // each)
        count = self.workers * min(4, max(1, len(tasks) // (5 * self.workers)))
        count = min(len(tasks), max(count, -(-len(tasks) // most)))
        edges = [position * len(tasks) // count for position in range(count + 1)]
        return [tasks[start:end] for start, end in pairwise(edges)]

    def _ready(self, refs: list[Any], position: int, count: int) -> bool:
        """Waits until the outcome at ``position`` is there (true), or until another task may be posted (false)."""
        while True:
            waiting = refs[position:]
            done, open_ = (
                ray.wait(waiting, num_returns=len(waiting), timeout=0, fetch_local=False) if waiting else ([], [])
            )
            if waiting and waiting[0] in done:
                return True
            if len(refs) < min(count, position + 2 * self.in_flight) and len(open_) < self.in_flight:
                return False
            _await(open_, 1)

    def _post(self, sent: Any, broadcast: Broadcast, group: Sequence[ClientTask]) -> Any:
        states = np.stack([_packed(self.messages.kept, task.kept) for task in group])
        clients = [task.client for task in group]
        return self._clients.remote(self._parcels, sent, broadcast.round, broadcast.lr, clients, states)

    def _outcomes(self, group: Sequence[ClientTask], ref: Any) -> Iterator[Outcome]:
        who = f"client{'s' * (len(group) > 1)} {', '.join(str(task.client) for task in group)}"
        for task, up, kept, (loss, visits, steps) in zip(group, *self._get(ref, who), strict=True):
            tree = self.messages.up.unpack(read_only(up).to(self.work.device))
            # What is kept gets memory of its own: a view would hold the object store's for as long as it lives.
            own = clone(self.messages.kept.unpack(read_only(kept).to(self.work.device)))
            yield Outcome(task.client, tree["delta"], tree["buffers"], tree["up"], own, loss, visits, steps)

    def evaluate(self, x: Tensor, buffers: Tensor) -> Pending:
        """Hand out the pieces of an evaluation."""
        count = len(pieces(self.work))
        model = ray.put(torch.cat([x, buffers]).cpu().numpy())
        size = max(1, -(-count // (2 * self.workers)))
        parts = [range(start, min(start + size, count)) for start in range(0, count, size)]
        refs = [self._evaluate.remote(self._parcels, model, part) for part in parts]

        def result() -> Scores:
            return in_order(self.work, [score for ref in refs for score in self._get(ref, "evaluation")])

        return result

    def _get(self, ref: Any, who: str) -> Any:
        try:
            _await([ref], 1)
            return ray.get(ref)
        except RayTaskError as error:
            if isinstance(error.cause, UndriftError):  # it says itself where it happened
                raise RunError(str(error.cause)) from None
            raise RunError(f"{who}: {describe(error.cause)}") from None
        except RayError as error:
            raise RunError(f"{who}: {type(error).__name__}: {_first_line(error)}") from None

    def spawn(self, kind: type, *arguments: Any) -> Any:
        """An actor: ``kind(Worker(work), *arguments)`` in a process of its own.

        Actors take no CPU of the cluster's count: those who wait for each other's messages must all have a place.
        """
        actor: Any = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(_Actor)
        return actor.remote(self._parcels, kind, *arguments)

    def call(self, actor: Any, method: str, *arguments: Any, returns: int = 1) -> Any:
        """Ask for a method's result."""
        return actor.call.options(num_returns=returns).remote(method, *arguments)

    def get(self, promises: Sequence[Any]) -> list[Any]:
        """Wait for results."""
        try:
            _await(list(dict.fromkeys(promises)), len(set(promises)))
            return list(ray.get(list(promises)))
        except (RayActorError, ObjectLostError) as error:
            raise ActorLostError(_first_line(error)) from None
        except RayTaskError as error:
            # An actor that was to use another's result fails with the other's end.
            if isinstance(error.cause, RayActorError | ObjectLostError):
                raise ActorLostError(_first_line(error)) from None
            raise RunError(f"split round: {describe(error.cause)}") from None

    def end(self, actors: Sequence[Any]) -> None:
        """End actors."""
        for actor in actors:
            ray.kill(actor)

    def close(self) -> None:
        """Give back the object store's room; end the cluster if this run started it."""
        self._parcels.clear()
        self._leave()


def _keep_to_loopback(own: bool) -> None:
    """A cluster of our own listens on this machine only.

    Ray takes 127.0.0.1 for "whatever address others reach this machine at", and listens on all of them, unless it is
    told that there are no other machines.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0" if own else "1"
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = not own


def _await(refs: list[Any], count: int) -> None:
    """Wait for some of the results; a stop that was asked for need not wait for ever."""
    while len(ray.wait(refs, num_returns=count, timeout=_LOOK, fetch_local=False)[0]) < count:
        if impatient():
            raise KeyboardInterrupt


def ray_engine(address: str | None, cpus_per_worker: float, gpus_per_worker: float) -> Cluster:
    """What makes the engine of a run; an address where nobody listens is refused at once."""
    _probe(address)
    return Cluster(address, cpus_per_worker, gpus_per_worker)


def _probe(address: str | None) -> None:
    """Refuse an address at which nobody listens at once; Ray itself would try for minutes."""
    host, _, port = (address or "").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=5).close()
    except OSError as error:
        raise ConfigError(f"engine.address = {address!r}: no Ray cluster ({error.strerror or error})") from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0]
