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
from undrift.core.tree import Tree, clone, flatten, nbytes, unflatten
from undrift.errors import DivergedError
from undrift.rounds.client_states import Held
from undrift.rounds.messages import Broadcast, Lost, Outcome
from undrift.rounds.plan import batches
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker
from undrift.rules.chain import Chain
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
    train_loss: float | None
    """None: nobody took part."""
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
    kept: dict[int, Held] = field(default_factory=dict)
    diverged: list[int] = field(default_factory=list)
    each: list[dict[str, Tensor]] | None = None
    """Every client's vectors, where a rule aggregates them itself; they are not summed then."""

    @staticmethod
    def zero(broadcast: Broadcast, up: Tree, *, individual: bool = False) -> Totals:
        """Nothing yet, in the shapes of a round's tensors and of what clients send up."""
        zeros = {path: torch.zeros_like(leaf) for path, leaf in flatten(up).items()}
        return Totals(
            torch.zeros_like(broadcast.x),
            torch.zeros_like(broadcast.buffers),
            unflatten(zeros, up),
            each=[] if individual else None,
        )

    def add(self, out: Outcome, weight: float) -> None:
        """Count one client in."""
        if self.each is not None:
            self.each.append({path: leaf.clone() for path, leaf in flatten(out.tree()).items()})
        else:
            self._sum(out, weight)
        self.weight += weight
        self.loss += float(out.loss) * out.visits
        self.visits += out.visits
        self.steps += out.steps
        self.clients += 1
        if not (_finite(out) if out.finite is None else out.finite):
            self.diverged.append(out.client)

    def _sum(self, out: Outcome, weight: float) -> None:
        self.delta.add_(out.delta, alpha=weight)
        if len(self.buffers):
            self.buffers.add_(out.buffers, alpha=weight)
        sent = flatten(out.up)
        for path, total in flatten(self.up).items():
            total.add_(sent[path], alpha=weight)

    def means(self, rule: Chain) -> tuple[Tensor, Tensor, Tree]:
        """What a rule that aggregates individual vectors makes of ``delta``, ``buffers`` and ``up``."""
        assert self.each is not None, "individual vectors were not kept"
        found = rule.aggregate({path: torch.stack([one[path] for one in self.each]) for path in self.each[0]})
        up = {path: found[f"up/{path}"] for path in flatten(self.up)}
        return found["delta"], found["buffers"], unflatten(up, self.up)

    def refuse_diverged(self, round: int) -> None:
        """Stop a round in which a client's loss or update is not finite."""
        if self.diverged:
            raise DivergedError(
                f"round {round}: the loss or the update of client{'s' * (len(self.diverged) > 1)} "
                f"{', '.join(map(str, self.diverged))} is not finite; a smaller train.lr may help"
            )


def _finite(out: Outcome) -> bool:
    return math.isfinite(float(out.loss)) and math.isfinite(float(out.delta.dot(out.delta)))


@dataclass(frozen=True)
class Drawn:
    """How many clients, of which weight, made how many steps and visited how many samples on average."""

    weight: float
    clients: int
    steps: float
    visits: float

    @staticmethod
    def of(totals: Totals) -> Drawn:
        """Of those that were heard from."""
        count = totals.clients
        return Drawn(totals.weight, count, totals.steps / count, totals.visits / count)

    @staticmethod
    def expected(work: Work) -> Drawn:
        """On average over all draws, clients weighing alike."""
        plan, population = work.plan, len(work.federation)
        cohort = min(plan.cohort or population, population)
        sizes = [int(size) for size in work.federation.sizes]
        steps, visits = (sum(map(count, sizes)) / population for count in (plan.steps, plan.visits))
        return Drawn(float(cohort), cohort, steps, visits)


class ServerStep:
    """``mean`` -> ``server`` -> ``after``, on the sums of a round."""

    def __init__(self, work: Work, worker: Worker) -> None:
        self.work, self.worker = work, worker
        self.total_weight = work.plan.total_weight(work.federation)
        self.samples = int(work.federation.offsets[-1])
        owned = work.federation.central or work.rule.owner_of(Owns.SERVER_STEP) is not None
        self._rate = None if not owned else 1.0
        self._releases = bool(work.rule.acting("release"))
        self._expected = Drawn.expected(work) if work.rule.expects else None

    def at(self, broadcast: Broadcast, totals: Totals, server: Server) -> ServerAt:
        """What the server's hooks are given after these clients were heard from."""
        plan, federation = self.work.plan, self.work.federation
        drawn = self._expected or Drawn.of(totals)
        delta, buffers, up = self._means(broadcast, totals, drawn)
        return ServerAt(
            x=broadcast.x,
            state=server.state,
            up=up,
            delta=delta,
            share=drawn.weight / self.total_weight,
            lr=broadcast.lr,
            server_lr=plan.step_size(drawn.clients) if self._rate is None else self._rate,
            round=broadcast.round,
            rounds=plan.rounds,
            population=len(federation),
            samples=self.samples,
            mean_steps=drawn.steps,
            mean_visits=drawn.visits,
            batch_size=plan.batch_size,
            server_samples=0 if federation.server is None else len(federation.server),
            learn=Learner(self.work, self.worker, broadcast.round, buffers, server.x[len(broadcast.x) :]),
            random=HookRandom(plan.seed, broadcast.round),
        )

    def _means(self, broadcast: Broadcast, totals: Totals, drawn: Drawn) -> tuple[Tensor, Tensor, Tree]:
        """The mean update and statistics, and what came up, summed with the population weights."""
        rule = self.work.rule
        if totals.each is not None:
            delta, buffers, mean = totals.means(rule)
            share = drawn.weight / self.total_weight
            return delta, buffers, unflatten({path: leaf * share for path, leaf in flatten(mean).items()}, mean)
        sums: Tree = {"delta": totals.delta, "up": totals.up}
        if self._releases:
            sums = clone(rule.release(sums, HookRandom(self.work.plan.seed, broadcast.round)))
        for leaf in flatten(sums["up"]).values():  # in place: while the server steps, all clients wait
            leaf.div_(self.total_weight)
        return sums["delta"].div_(drawn.weight), totals.buffers / drawn.weight, sums["up"]

    def step(self, at: ServerAt) -> tuple[Tensor, Tree]:
        """The model after the server step, and the rule's new memory."""
        rule = self.work.rule
        step, state = rule.server(rule.mean(at.delta, at), at)
        return at.x + (step if at.server_lr == 1.0 else at.server_lr * step), state

    def after(self, x: Tensor, at: ServerAt) -> Tensor:
        """The new server model; one that is not finite ends the run."""
        x = self.work.rule.after(x, at)
        if not math.isfinite(float(x.dot(x))):
            raise DivergedError(f"round {at.round}: the server model is not finite after the server step")
        return x


@dataclass
class Learner:
    """Server learning in one round: local SGD on the server's data, with the cohort's running statistics."""

    work: Work
    worker: Worker
    round: int
    buffers: Tensor
    own: Tensor
    """The server's own layers, where clients have layers of their own; they learn too, and stay here."""

    def __call__(
        self, start: Tensor, lr: float, *, epochs: int | None = None, steps: int | None = None, batch_size: int = 0
    ) -> Tensor:
        """From ``start``, so many epochs or steps."""
        data, seed = self.work.federation.server, self.work.plan.seed
        assert data is not None, "server learning is checked to have data before the run"
        order = batches(len(data), batch_size, epochs or 1, steps, stream(seed, "server-order", self.round))
        with self.worker.clock("server learning"):
            whole = torch.cat([start, self.own]) if len(self.own) else start
            learnt = self.worker.learn(whole, self.buffers, data, lr, order, self.round)
        self.own = learnt[len(start) :]
        return learnt[: len(start)]


class SharedData:
    """Who has been sent the server's shared data, and what sending it to the others costs."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._informed: set[int] = set()

    def skip(self, cohort: list[int]) -> None:
        """An earlier part of this run made a round with these clients."""
        if self.work.federation.shared_bytes:
            self._informed.update(cohort)

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
