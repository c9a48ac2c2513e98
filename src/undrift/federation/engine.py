"""The engine of a real federation: a round's tasks as messages to sites, their answers checked one by one."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from flwr.app import RecordDict
from torch import Tensor

from undrift.core.text import printable
from undrift.core.tree import Tree, clone, flatten
from undrift.data.federation import Federation
from undrift.engines.serial import Serial
from undrift.errors import MessageError, RunError, RunWarning
from undrift.federation.messages import RefusedError, check, check_counts, meta_of, pack, refuse_infinite, vector_of
from undrift.rounds.engine import Pending
from undrift.rounds.messages import Broadcast, ClientTask, Lost, Messages, Outcome
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker
from undrift.rules.chain import Chain

LARGE, HUGE = 5.0, 1000.0
"""Times the median of a round: a larger update is warned of, a huge one refused."""
Answer = RecordDict | str
"""What a site answered, or why there is no answer."""


class Exchange(Protocol):
    """Sends messages to sites and collects their answers."""

    def ask(self, what: str, contents: Mapping[str, RecordDict], timeout: float) -> dict[str, Answer]:
        """One message to each of some sites, by name; waits at most ``timeout`` seconds."""
        ...

    def await_sites(self, names: Sequence[str], enough: int, timeout: float) -> list[str]:
        """Wait until ``enough`` of these sites are connected; returns those that are."""
        ...


@dataclass(frozen=True)
class AtSites(Chain):
    """A rule whose clients keep their memory themselves: all that the server keeps is the round it is from.

    So the store and its checkpoints hold, for each client, the last round that was accepted, and a run that
    goes back to a checkpoint asks every site for its memory of that round.
    """

    def init_client(self, x: Tensor) -> Tree:
        """A ticket: no round yet."""
        return {"round": torch.zeros(1, dtype=torch.int64)} if flatten(super().init_client(x)) else {}


@dataclass
class Terms:
    """What a run on sites needs to know besides the work."""

    run: str
    sites: tuple[str, ...]
    settings: str
    task: str
    wire: Messages
    min_sites: int = 1
    timeout: float = 600.0
    safe: Callable[[], int] = field(default=lambda: 1 << 62)
    """The last round that the server cannot go back behind."""
    begin: Callable[[], None] = field(default=lambda: None)
    """Called once, before the first message of a round: what must be known before anything can be lost."""
    norms: Callable[[int, Mapping[str, float]], None] = field(default=lambda round, norms: None)
    """Told the norms of a round's accepted updates, by site."""
    max_norm: float | None = None
    """A larger update makes its site lost."""


class Flower:
    """Clients at sites; evaluation in this process, on the server's own data."""

    eager = True

    def __init__(self, work: Work, worker: Worker, exchange: Exchange, terms: Terms) -> None:
        self.federation, self.plan, self.exchange, self.terms = work.federation, work.plan, exchange, terms
        self.serial = Serial(work, worker)
        self.last: dict[int, int] = {}
        """The last round of every client that keeps something."""
        self._informed: set[int] = set()
        self._begun = False
        self.rule = work.rule
        self.total_weight = work.plan.total_weight(work.federation)
        self._lengths: dict[int, float] = {}
        """How long each client's last update is, decoded."""

    def clients(self, broadcast: Broadcast, tasks: Sequence[ClientTask]) -> Iterator[Outcome | Lost]:
        """Send a round's tasks to their sites; who does not answer in time, or not as it must, is lost."""
        terms, names = self.terms, [self.terms.sites[task.client] for task in tasks]
        if not self._begun:
            terms.begin()
            self._begun = True
        here = set(terms_wait(self.exchange, names, min(terms.min_sites, len(names)), terms.timeout))
        vector = torch.empty(terms.wire.down.size, dtype=terms.wire.down.dtype)
        terms.wire.down.pack(broadcast.tree(), vector)
        present = {name: task for name, task in zip(names, tasks, strict=True) if name in here}
        answers = self._share(present)
        ready = {name: task for name, task in present.items() if name not in answers}
        contents = {name: pack(self._meta(broadcast, task), vector) for name, task in ready.items()}
        answers |= self.exchange.ask("train", contents, terms.timeout)
        heard = 0
        outs = [
            self._checked(broadcast, task, name, answers.get(name, "is not connected"))
            for name, task in zip(names, tasks, strict=True)
        ]
        outs = without_huge(outs, terms.sites, self._lengths)
        self._norms(broadcast.round, outs)
        for task, out in zip(tasks, outs, strict=True):
            if isinstance(out, Outcome):
                heard += 1
                self.last |= {task.client: broadcast.round} if task.kept else {}
            yield out
        if heard < terms.min_sites and heard < len(tasks):
            raise RunError(
                f"round {broadcast.round}: {heard} of {len(tasks)} sites gave an update that counts, "
                f"engine.min_sites = {terms.min_sites} are needed; --resume goes on when they are back "
                f"({'; '.join(out.reason for out in outs if isinstance(out, Lost))})"
            )

    def _meta(self, broadcast: Broadcast, task: ClientTask) -> dict[str, int | float | str]:
        terms = self.terms
        return {
            "run": terms.run,
            "round": broadcast.round,
            "lr": broadcast.lr,
            "client": task.client,
            "clients": len(self.federation),
            "accepted": int(task.kept["round"]) if task.kept else 0,
            "safe": terms.safe(),
            "shared": self.federation.extra_size,
            "settings": terms.settings,
            "task": terms.task,
        }

    def _norms(self, round: int, outs: Sequence[Outcome | Lost]) -> None:
        """Tell how large each site's update is, and warn of those that are much larger than usual."""
        norms = {self.terms.sites[out.client]: self._lengths[out.client] for out in outs if isinstance(out, Outcome)}
        self.terms.norms(round, norms)
        warn_of_large(round, norms)

    def _checked(self, broadcast: Broadcast, task: ClientTask, name: str, answer: Answer) -> Outcome | Lost:
        try:
            return self._outcome(broadcast, task, answer)
        except RefusedError as error:
            return Lost(task.client, printable(f"site {name}: {error}", 600))

    def _refuse_overflow(self, tree: Tree) -> float:
        """The length of an update; one that the server could not compute with, or not believe, is refused."""
        square = sum(float(part.double().square().sum()) for part in flatten(tree).values())
        if square * max(1.0, self.total_weight) ** 2 > torch.finfo(torch.float32).max:
            raise RefusedError("the update is so large that the server's sums would overflow")
        norm = float(tree["delta"].double().norm())
        if self.terms.max_norm is not None and norm > self.terms.max_norm:
            raise RefusedError(f"an update of norm {norm:.3g}, engine.max_norm = {self.terms.max_norm:g}")
        return norm

    def _decoded(self, tree: Tree) -> Tree:
        """What was sent, as the server will make it out; refused if that cannot be done."""
        try:
            return tree | self.rule.undone({"delta": tree["delta"], "up": tree["up"]}, self.terms.wire.forms)
        except MessageError as error:
            raise RefusedError(str(error)) from None

    def _outcome(self, broadcast: Broadcast, task: ClientTask, answer: Answer) -> Outcome:
        if isinstance(answer, str):
            raise RefusedError(answer)
        meta = meta_of(answer, run=str, round=int, client=int, loss=float, visits=int, steps=int)
        check(meta, run=self.terms.run, round=broadcast.round, client=task.client)
        samples = self.federation.size(task.client)
        check_counts(meta, visits=self.plan.visits(samples), steps=self.plan.steps(samples))
        wire = self.terms.wire.up
        vector = vector_of(answer, wire.size, wire.dtype).to(broadcast.x.device)
        tree = clone(wire.unpack(vector))  # each tensor where torch would let it begin
        refuse_infinite(flatten(tree).values())
        self._lengths[task.client] = self._refuse_overflow(self._decoded(tree))
        kept = {"round": torch.tensor([broadcast.round])} if task.kept else {}
        return Outcome(
            task.client,
            tree["delta"],
            tree["buffers"],
            tree["up"],
            kept,
            meta["loss"],
            meta["visits"],
            meta["steps"],
        )

    def _share(self, tasks: Mapping[str, ClientTask]) -> dict[str, Answer]:
        """Send the server's shared data to those who have not had them from us; returns who refused."""
        if not self.federation.extra_size:
            return {}
        fresh = {name: task.client for name, task in tasks.items() if task.client not in self._informed}
        contents = {name: self._shared(self.federation, client) for name, client in fresh.items()}
        answers = self.exchange.ask("share", contents, self.terms.timeout)
        refused: dict[str, Answer] = {name: answer for name, answer in answers.items() if isinstance(answer, str)}
        self._informed.update(client for name, client in fresh.items() if name not in refused)
        return refused

    def _shared(self, federation: Federation, client: int) -> RecordDict:
        x, labels = federation.pool.take(federation.rows(client)[-federation.extra_size :])
        meta = {"run": self.terms.run, "task": self.terms.task, "labels": labels.tolist()}
        return pack(meta, x.contiguous().float().reshape(-1))

    def evaluate(self, x: Tensor, buffers: Tensor) -> Pending:
        """Evaluate at once, here."""
        return self.serial.evaluate(x, buffers)

    def finish(self) -> None:
        """The run is complete: tell the sites which of their memories counts for good."""
        if not self.last:
            return
        contents = {
            self.terms.sites[client]: pack({"run": self.terms.run, "accepted": round})
            for client, round in self.last.items()
        }
        here = self.exchange.await_sites(list(contents), 0, 0.0)
        self.exchange.ask("commit", {n: c for n, c in contents.items() if n in here}, 30.0)

    def close(self) -> None:
        """Nothing to give back; the connection belongs to who opened it."""


def without_huge(
    outs: Sequence[Outcome | Lost], sites: Sequence[str], lengths: Mapping[int, float]
) -> list[Outcome | Lost]:
    """Updates beside which all others would count for nothing are refused, where there are enough to compare."""
    norms = {out.client: lengths[out.client] for out in outs if isinstance(out, Outcome)}
    usual = statistics.median(norms.values()) if len(norms) > 2 else 0.0
    if not usual:
        return list(outs)
    return [
        out
        if norms.get(out.client, 0.0) <= HUGE * usual
        else Lost(out.client, f"site {sites[out.client]}: an update {norms[out.client] / usual:.0f} times the median")
        for out in outs
    ]


def warn_of_large(round: int, norms: Mapping[str, float]) -> None:
    """Say which accepted updates are much larger than what is usual in their round."""
    usual = statistics.median(norms.values()) if len(norms) > 1 else 0.0
    for name, norm in norms.items():
        if usual and norm > LARGE * usual:
            warnings.warn(
                f"round {round}: the update of site {name} is {norm / usual:.1f} times as large as the median",
                RunWarning,
                stacklevel=2,
            )


def terms_wait(exchange: Exchange, names: Sequence[str], enough: int, timeout: float) -> list[str]:
    """The sites that are there, once enough of them are."""
    here = exchange.await_sites(names, enough, timeout)
    if len(here) < enough:
        missing = ", ".join(sorted(set(names) - set(here)))
        raise RunError(f"after {timeout:g} s {len(here)} of {enough} sites are connected; missing: {missing}")
    return here
