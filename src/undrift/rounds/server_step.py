"""The server's part of a round, whatever kind of round it is: mean, server step, server learning.

``delta = sum_i w_i delta_i`` goes through ``mean``, ``server`` and ``after`` of the rule; a full round and a split
round *have* this object, neither is made of the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from undrift.core.streams import HookRandom, stream
from undrift.core.tree import Tree, flatten, nbytes, unflatten
from undrift.errors import DivergedError
from undrift.rounds.messages import Broadcast, Lost, Outcome
from undrift.rounds.plan import batches
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker
from undrift.rules.rule import Owns, ServerAt


@dataclass
class Server:
    """What the server holds between rounds."""

    x: Tensor
    buffers: Tensor
    state: Tree

    def tree(self) -> Tree:
        """As one tree, for checkpoints."""
        return {"x": self.x, "buffers": self.buffers, "state": self.state}


@dataclass
class Report:
    """What a round did, besides changing the server."""

    round: int
    clients: list[int]
    lost: list[Lost]
    lr: float
    train_loss: float
    bytes_down: int
    bytes_up: int


@dataclass
class Totals:
    """Running sums over the clients that were heard from, in the order of the cohort."""

    delta: Tensor
    buffers: Tensor
    up: Tree
    weight: float = 0.0
    loss: float = 0.0
    visits: int = 0
    steps: int = 0
    clients: int = 0
    bytes: int = 0
    kept: dict[int, Tree] = field(default_factory=dict)
    diverged: list[int] = field(default_factory=list)

    @staticmethod
    def zero(broadcast: Broadcast, up: Tree) -> Totals:
        """Nothing yet, in the shapes of a round's tensors and of what clients send up."""
        zeros = {path: torch.zeros_like(leaf) for path, leaf in flatten(up).items()}
        return Totals(torch.zeros_like(broadcast.x), torch.zeros_like(broadcast.buffers), unflatten(zeros, up))

    def add(self, out: Outcome, weight: float) -> None:
        """Count one client in."""
        self.delta.add_(out.delta, alpha=weight)
        self.buffers.add_(out.buffers, alpha=weight)
        sent = flatten(out.up)
        for path, total in flatten(self.up).items():
            total.add_(sent[path], alpha=weight)
        self.weight += weight
        self.loss += float(out.loss) * out.visits
        self.visits += out.visits
        self.steps += out.steps
        self.clients += 1
        self.bytes += nbytes(out.tree())
        if not (math.isfinite(float(out.loss)) and math.isfinite(float(out.delta.dot(out.delta)))):
            self.diverged.append(out.client)

    def refuse_diverged(self, round: int) -> None:
        """Stop a round in which a client's loss or update is not finite."""
        if self.diverged:
            raise DivergedError(
                f"round {round}: the loss or the update of client{'s' * (len(self.diverged) > 1)} "
                f"{', '.join(map(str, self.diverged))} is not finite; a smaller train.lr may help"
            )


class ServerStep:
    """``mean`` -> ``server`` -> ``after``, on the sums of a round."""

    def __init__(self, work: Work, worker: Worker) -> None:
        self.work, self.worker = work, worker
        self.total_weight = work.plan.total_weight(work.federation)
        self.samples = int(work.federation.offsets[-1])
        owned = work.federation.central or work.rule.owner_of(Owns.SERVER_STEP) is not None
        self._rate = None if not owned else 1.0

    def at(self, broadcast: Broadcast, totals: Totals, server: Server) -> ServerAt:
        """What the server's hooks are given after these clients were heard from."""
        plan, federation = self.work.plan, self.work.federation
        up = {path: leaf / self.total_weight for path, leaf in flatten(totals.up).items()}
        buffers = totals.buffers / totals.weight
        return ServerAt(
            x=broadcast.x,
            state=server.state,
            up=unflatten(up, totals.up),
            delta=totals.delta / totals.weight,
            share=totals.weight / self.total_weight,
            lr=broadcast.lr,
            server_lr=plan.step_size(totals.clients) if self._rate is None else self._rate,
            round=broadcast.round,
            rounds=plan.rounds,
            population=len(federation),
            samples=self.samples,
            mean_steps=totals.steps / totals.clients,
            mean_visits=totals.visits / totals.clients,
            batch_size=plan.batch_size,
            server_samples=0 if federation.server is None else len(federation.server),
            learn=Learner(self.work, self.worker, broadcast.round, buffers),
            random=HookRandom(plan.seed, broadcast.round),
        )

    def step(self, at: ServerAt) -> tuple[Tensor, Tree]:
        """The model after the server step, and the rule's new memory."""
        rule = self.work.rule
        step, state = rule.server(rule.mean(at.delta, at), at)
        return at.x + at.server_lr * step, state

    def after(self, x: Tensor, at: ServerAt) -> Tensor:
        """The new server model; one that is not finite ends the run."""
        x = self.work.rule.after(x, at)
        if not math.isfinite(float(x.dot(x))):
            raise DivergedError(f"round {at.round}: the server model is not finite after the server step")
        return x


@dataclass(frozen=True)
class Learner:
    """Server learning in one round: local SGD on the server's data, with the cohort's running statistics."""

    work: Work
    worker: Worker
    round: int
    buffers: Tensor

    def __call__(
        self, start: Tensor, lr: float, *, epochs: int | None = None, steps: int | None = None, batch_size: int = 0
    ) -> Tensor:
        """From ``start``, so many epochs or steps."""
        data, seed = self.work.federation.server, self.work.plan.seed
        assert data is not None, "server learning is checked to have data before the run"
        order = batches(len(data), batch_size, epochs or 1, steps, stream(seed, "server-order", self.round))
        with self.worker.clock("server learning"):
            return self.worker.learn(start, self.buffers, data, lr, order, self.round)


class SharedData:
    """Who has been sent the server's shared data, and what sending it to the others costs."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._informed: set[int] = set()

    def skip(self, round: int) -> None:
        """An earlier part of this run made this round."""
        if self.work.federation.shared_bytes:
            self._informed.update(self.work.plan.cohort_of(round, len(self.work.federation)))

    def bytes_down(self, cohort: list[int]) -> int:
        """What sending it to those of a cohort that do not have it yet costs."""
        fresh = set(cohort) - self._informed if self.work.federation.shared_bytes else set()
        self._informed |= fresh
        return len(fresh) * self.work.federation.shared_bytes


def bytes_down(work: Work, model: Tree, down: Tree, clients: int) -> int:
    """What sending a model and the rule's messages to so many clients costs.

    Where a rule is tracked, every client of the population hears every broadcast of the model.
    """
    tracked = {link.name for link in work.rule.links if link.tracked}
    sent = {name: message for name, message in down.items() if name not in tracked}
    return nbytes(model) * (len(work.federation) if tracked else clients) + nbytes(sent) * clients
