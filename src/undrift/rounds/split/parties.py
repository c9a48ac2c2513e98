"""Who carries a split round out: clients and main server in this process, or in actors of their own.

Both are the same objects (``SplitClient``, ``MainServer``); what differs is whether they are called here, or by
messages that go straight from a client's actor to the main server's and back, while the driver only says who acts
when. An actor that dies costs a repetition of the round, which depends on nothing but what the driver has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from undrift.core.tree import Tree
from undrift.rounds.messages import Broadcast
from undrift.rounds.split.client import SplitClient
from undrift.rounds.split.main_server import MainServer
from undrift.rounds.split.messages import ClientUpdate, Gradient, MainUpdate, Smashed
from undrift.rounds.split.parts import SplitParts
from undrift.rounds.worker import Worker
from undrift.rules.split import Split

MEMORY = 3 << 30
"""Bytes that a cohort's models and graphs may take; above it, forward passes are made again for their gradients."""
_AHEAD = 16
"""Turns that are handed out to actors before the first of them is waited for."""


class ActorLostError(Exception):
    """A process with a part of the round in it is gone."""


class Parties(Protocol):
    """The clients and the main server of a split round."""

    def begin(self, round: int, kept: Mapping[int, Tree]) -> None:
        """A round begins for these clients, with what each kept."""
        ...

    def open(self, broadcast: Broadcast, steps: Mapping[int, int]) -> None:
        """A synchronisation is over; these clients act until the next, each for so many steps."""
        ...

    def turn(self, clients: Sequence[int], q: Sequence[float], rate: float) -> None:
        """One step of clients that act together, weighted with ``q``, and of the main server."""
        ...

    def close(self) -> tuple[dict[int, ClientUpdate], MainUpdate]:
        """What is handed in at a synchronisation, in the order of the cohort."""
        ...

    def restart(self) -> None:
        """Make up for actors that were lost."""
        ...


class InProcess:
    """All parties in this process."""

    def __init__(self, parts: SplitParts) -> None:
        self.parts, self.main = parts, MainServer(parts)
        self.memory = MEMORY
        self.clock = parts.worker.clock

    def begin(self, round: int, kept: Mapping[int, Tree]) -> None:
        """A round begins for these clients."""
        self.clients = {client: SplitClient(self.parts, round, client, own) for client, own in kept.items()}
        self.main.begin(round)

    def open(self, broadcast: Broadcast, steps: Mapping[int, int]) -> None:
        """A synchronisation is over."""
        recompute = self._needed() > self.memory
        self.acting = {client: self.clients[client] for client in steps}
        for client, count in steps.items():
            self.acting[client].open(broadcast, count, recompute=recompute)
        self.main.open(broadcast)

    def turn(self, clients: Sequence[int], q: Sequence[float], rate: float) -> None:
        """One step of clients that act together, and of the main server."""
        with self.clock("forward/backward"):
            messages = [self.acting[client].forward() for client in clients]
        with self.clock("main server"):
            gradients = self.main.step(messages, q, rate)
        with self.clock("forward/backward"):
            for client, gradient in zip(clients, gradients, strict=True):
                self.acting[client].backward(gradient)

    def close(self) -> tuple[dict[int, ClientUpdate], MainUpdate]:
        """What is handed in at a synchronisation."""
        return {client: one.close() for client, one in self.acting.items()}, self.main.close()

    def restart(self) -> None:
        """Nothing can be lost here."""

    def _needed(self) -> int:
        """About what a model and a graph for each client of a cohort take."""
        if not self.parts.algorithm.joint:
            return 0
        work = self.parts.work
        samples = work.plan.batch_size or max(work.federation.sizes)
        front = 2 * self.parts.worker.model.weights[: self.parts.halves.size].nbytes
        return len(self.clients) * (front + int(samples) * self.parts.graph_bytes)


@runtime_checkable
class Actors(Protocol):
    """An engine that can place objects in processes of their own; calls return at once, with a promise."""

    workers: int

    def spawn(self, kind: type, *arguments: Any) -> Any:
        """An actor: ``kind(Worker(work), *arguments)`` in a process of its own."""
        ...

    def call(self, actor: Any, method: str, *arguments: Any, returns: int = 1) -> Any:
        """Ask for a method's result: a promise (or ``returns`` of them), which may be an argument of other calls."""
        ...

    def get(self, promises: Sequence[Any]) -> list[Any]:
        """Wait for results; raises :class:`ActorLostError` if their actor is gone."""
        ...

    def end(self, actors: Sequence[Any]) -> None:
        """End actors."""
        ...


class ClientHost:
    """Some of a cohort's clients, in an actor."""

    def __init__(self, worker: Worker, algorithm: Split) -> None:
        self.parts = SplitParts(worker, algorithm)
        self.clients: dict[int, SplitClient] = {}

    def begin(self, round: int, client: int, kept: Tree) -> None:
        """A round begins for a client."""
        self.clients[client] = SplitClient(self.parts, round, client, kept)

    def open(self, broadcast: Broadcast, client: int, steps: int) -> None:
        """A synchronisation is over for a client."""
        self.clients[client].open(broadcast, steps, recompute=False)

    def forward(self, client: int) -> Smashed:
        """The client's next minibatch, forward to the cut."""
        return self.clients[client].forward()

    def backward(self, client: int, gradient: Gradient) -> None:
        """Backward from the cut."""
        self.clients[client].backward(gradient)

    def close(self, client: int) -> ClientUpdate:
        """What the client hands in."""
        return self.clients[client].close()


class MainHost:
    """The main server, in an actor."""

    def __init__(self, worker: Worker, algorithm: Split) -> None:
        self.main = MainServer(SplitParts(worker, algorithm))

    def begin(self, round: int) -> None:
        """A round begins."""
        self.main.begin(round)

    def open(self, broadcast: Broadcast) -> None:
        """A synchronisation is over."""
        self.main.open(broadcast)

    def step(self, rate: float, q: list[float], *messages: Smashed) -> Any:
        """Answer clients that act together, and make one step."""
        answers = self.main.step(messages, q, rate)
        return answers if len(answers) > 1 else answers[0]

    def close(self) -> MainUpdate:
        """The server part."""
        return self.main.close()


class InActors:
    """Clients and main server in actors that send each other real messages."""

    def __init__(self, actors: Actors, algorithm: Split) -> None:
        self.actors, self.algorithm = actors, algorithm
        self._hosts: list[Any] = []
        self._main: Any = None

    def begin(self, round: int, kept: Mapping[int, Tree]) -> None:
        """A round begins for these clients."""
        if not self._hosts:
            self._main = self.actors.spawn(MainHost, self.algorithm)
            self._hosts = [self.actors.spawn(ClientHost, self.algorithm) for _ in range(self.actors.workers)]
        self._host = {client: self._hosts[i % len(self._hosts)] for i, client in enumerate(kept)}
        begun = [self.actors.call(self._main, "begin", round)]
        begun += [self._ask(client, "begin", round, client, own) for client, own in kept.items()]
        self.actors.get(begun)

    def open(self, broadcast: Broadcast, steps: Mapping[int, int]) -> None:
        """A synchronisation is over."""
        self._acting, self._under_way = list(steps), list[list[Any]]()
        opened = [self.actors.call(self._main, "open", broadcast)]
        opened += [self._ask(client, "open", broadcast, client, count) for client, count in steps.items()]
        self.actors.get(opened)

    def turn(self, clients: Sequence[int], q: Sequence[float], rate: float) -> None:
        """One step of clients that act together; not waited for at once."""
        sent = [self._ask(client, "forward", client) for client in clients]
        answers = self.actors.call(self._main, "step", rate, list(q), *sent, returns=len(clients))
        answers = [answers] if len(clients) == 1 else answers
        self._under_way.append(
            [self._ask(c, "backward", c, answer) for c, answer in zip(clients, answers, strict=True)]
        )
        if len(self._under_way) > _AHEAD:
            self.actors.get(self._under_way.pop(0))

    def close(self) -> tuple[dict[int, ClientUpdate], MainUpdate]:
        """What is handed in at a synchronisation."""
        updates = self.actors.get([self._ask(client, "close", client) for client in self._acting])
        main = self.actors.get([self.actors.call(self._main, "close")])[0]
        return dict(zip(self._acting, updates, strict=True)), main

    def restart(self) -> None:
        """End what is left, so that the next round begins with new actors."""
        self.actors.end([self._main, *self._hosts])
        self._hosts = []

    def _ask(self, client: int, method: str, *arguments: Any) -> Any:
        return self.actors.call(self._host[client], method, *arguments)
