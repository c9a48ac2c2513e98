"""The work of one party on its own data: a client's round, server learning, evaluation.

A client's round is one function of (rule, model, what came down, what was kept, data, settings); engines only
map it over the cohort.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from undrift.core.clock import Clock
from undrift.core.streams import HookRandom, torch_seed
from undrift.core.tree import Tree, clone, flatten
from undrift.core.vector import FlatModel
from undrift.data.augment import flip_crop
from undrift.data.dataset import rows
from undrift.data.federation import Federation, Indices, Pair
from undrift.rounds.messages import Broadcast, ClientTask, Outcome
from undrift.rounds.plan import Plan, grouped
from undrift.rules.chain import Chain
from undrift.rules.rule import ClientAt

Loss = Callable[[Tensor, Tensor], Tensor]
_GATHERED = 1 << 20
"""Bytes of samples that are gathered at once: for small batches most of the time is the call, not the copy."""
EVALUATION_BATCH = 200
"""Small enough that activations are not given back to the system after every chunk."""


@dataclass(frozen=True)
class Work:
    """All that a worker has to know before the first round."""

    module: nn.Module
    rule: Chain
    federation: Federation
    plan: Plan
    loss: Loss = nn.functional.cross_entropy
    device: str = "cpu"
    profile: bool = False

    def evaluated(self) -> dict[str, Pair]:
        """The data that the server model is evaluated on, by name."""
        sets = {"test": self.federation.test, "validation": self.federation.validation}
        return {name: pair for name, pair in sets.items() if pair is not None}


@dataclass
class Score:
    """Sums over evaluated samples."""

    samples: int = 0
    correct: int = 0
    loss: float = 0.0
    counted: bool = True
    """Whether accuracy makes sense (class labels)."""

    def __add__(self, other: Score) -> Score:
        return Score(
            self.samples + other.samples,
            self.correct + other.correct,
            self.loss + other.loss,
            self.counted and other.counted,
        )


class Worker:
    """A model of one's own and the functions that train and evaluate it; holds nothing between calls."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.model = FlatModel(work.module, work.device)
        self.model.module.train()  # all of it: what a caller left in evaluation mode would stay so at some workers only
        self.clock = Clock(work.profile)

    def client(self, broadcast: Broadcast, task: ClientTask, delta: Tensor | None = None) -> Outcome:
        """A client's round: from the server model to an update, a message and what the client keeps.

        ``delta``: where to put the update, for engines that have a place for it.
        """
        rule, y, client, round = self.work.rule, self.model.weights, task.client, broadcast.round
        index = self.work.federation.rows(client)
        noise = torch_seed(self.work.plan.seed, "noise", round, client)
        with self._drawn_from(noise + 1):  # hooks that draw from the default generator get numbers of this client's own
            at = self.open_client(broadcast, task, self.work.plan.steps(len(index)))
            self.model.load(broadcast.x, broadcast.buffers)
            loss = visits = 0.0
            self.mode(training=True)
            self._seed(noise)
            for x, labels in self.clock.each("data", self.client_batches(round, client)):
                with self.clock("rule"):
                    rule.shift(y, at)
                loss += self._step(x, labels, broadcast.lr, at, "forward/backward") * len(labels)
                visits += len(labels)
            delta = y - broadcast.x if delta is None else torch.sub(y, broadcast.x, out=delta)
            self._seed(noise + 2)
            with self.clock("rule"):
                up, kept = (_own(tree, delta) for tree in rule.up(delta, at))
        buffers = self.model.buffers.clone()
        return Outcome(client, delta, buffers, up, kept, loss / visits, int(visits), at.steps)

    def open_client(
        self, broadcast: Broadcast, task: ClientTask, steps: int, gradient: Callable[[], Tensor] | None = None
    ) -> ClientAt:
        """A client at the start of its round (or of a part of it): what hooks are given, with ``start`` called."""
        index = self.work.federation.rows(task.client)
        at = ClientAt(
            broadcast.x,
            broadcast.down,
            task.kept,
            broadcast.lr,
            steps,
            broadcast.round,
            gradient or (lambda: self.full_gradient(broadcast.x, broadcast.buffers, index)),
            HookRandom(self.work.plan.seed, broadcast.round, task.client),
        )
        with self.clock("rule"):
            at.local = self.work.rule.start(at)
        return at

    def client_batches(self, round: int, client: int) -> Iterator[tuple[Tensor, Tensor]]:
        """A client's minibatches in a round."""
        index = self.work.federation.rows(client)
        return self.batches(index, self.work.plan.order(len(index), round, client), round, client)

    def learn(
        self, start: Tensor, buffers: Tensor, data: Pair, lr: float, order: Iterator[Indices], noise: int
    ) -> Tensor:
        """Plain local SGD on the server's data."""
        x, labels = data
        self.model.load(start, buffers)
        self.mode(training=True)
        with self._drawn_from(torch_seed(self.work.plan.seed, "server-noise", noise)):
            for batch in order:
                index = torch.from_numpy(batch)
                self._step(
                    rows(x, index).to(self.work.device), labels[index].to(self.work.device), lr, None, "server learning"
                )
        return self.model.weights.clone()

    def full_gradient(self, weights: Tensor, buffers: Tensor, index: Indices, *, decay: bool = True) -> Tensor:
        """The full-batch gradient of a client's mean loss, in evaluation mode (streamed over its data)."""
        federation = self.work.federation
        return self.gradient_of((federation.x, federation.y), weights, buffers, torch.from_numpy(index), decay=decay)

    def gradient_of(
        self,
        data: Pair,
        weights: Tensor,
        buffers: Tensor,
        index: Tensor | None = None,
        *,
        decay: bool = False,
    ) -> Tensor:
        """The full-batch gradient of the mean loss on ``data`` (or its rows ``index``), evaluation mode."""
        x, labels = data
        index = torch.arange(len(labels)) if index is None else index
        total = torch.zeros_like(weights)
        with self.loaded(weights, buffers), self.evaluating():
            for chunk in torch.split(index, EVALUATION_BATCH):
                self.model.grad.zero_()
                self._loss(rows(x, chunk).to(self.work.device), labels[chunk].to(self.work.device)).backward()  # type: ignore[no-untyped-call]
                total.add_(self.model.grad, alpha=len(chunk) / len(index))
        if decay:
            total.add_(weights, alpha=self.work.plan.weight_decay)
        return total

    @contextlib.contextmanager
    def loaded(self, weights: Tensor, buffers: Tensor) -> Iterator[None]:
        """The model with other vectors; its own are put back afterwards."""
        before = self.model.weights.clone(), self.model.buffers.clone()
        self.model.load(weights, buffers)
        try:
            yield
        finally:
            self.model.load(*before)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """The model in evaluation mode; the mode is put back afterwards."""
        training = self.model.module.training
        self.mode(training=False)
        try:
            yield
        finally:
            self.mode(training)

    def evaluate(self, weights: Tensor, buffers: Tensor, data: Pair) -> Score:
        """Loss and correct answers of a model on ``data``."""
        self.model.load(weights, buffers)
        total = Score()
        for start in range(0, len(data[1]), EVALUATION_BATCH):
            total += self.evaluate_chunk(data, start)
        return total

    def evaluate_chunk(self, data: Pair, start: int) -> Score:
        """The loaded model on one chunk of ``data``; chunks are fixed, so sums do not depend on who makes them."""
        device = self.work.device
        x, labels = (part[start : start + EVALUATION_BATCH].to(device) for part in data)
        self.mode(training=False)
        with self.clock("evaluation"), torch.inference_mode(), self.autocast():
            out = self.model.module(x)
            loss = float(self.work.loss(out.float() if out.dtype == torch.bfloat16 else out, labels))
            counted = not labels.is_floating_point() and out.ndim == 2
            correct = int((out.argmax(1) == labels).sum()) if counted else 0
        return Score(len(labels), correct, loss * len(labels), counted)

    def batches(
        self, index: Indices, order: Iterator[Indices], round: int, client: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """A client's minibatches in this order, augmented from its own random stream."""
        federation, device = self.work.federation, self.work.device
        generator = torch.Generator()
        if self.work.plan.augment:
            generator.manual_seed(torch_seed(self.work.plan.seed, "augment", round, client))
        together = _GATHERED // federation.x[:1].nbytes
        for group in grouped(order, together):
            chosen = torch.from_numpy(index[np.concatenate(group)])
            sizes = [len(positions) for positions in group]
            samples, answers = torch.split(rows(federation.x, chosen), sizes), torch.split(federation.y[chosen], sizes)
            for x, labels in zip(samples, answers, strict=True):
                yield (flip_crop(x, generator) if self.work.plan.augment else x).to(device), labels.to(device)

    def _loss(self, x: Tensor, labels: Tensor) -> Tensor:
        with self.autocast():
            out = self.model.module(x)
        return self.work.loss(out.float() if out.dtype == torch.bfloat16 else out, labels)

    def _step(self, x: Tensor, labels: Tensor, lr: float, at: ClientAt | None, part: str) -> float:
        """One SGD step on a batch's mean loss; ``at``: let the rule change the gradient. Returns the loss."""
        with self.clock(part):
            loss = self._loss(x, labels)
            gradient = self.model.differentiate(loss)
        rule, decay, y = self.work.rule, self.work.plan.weight_decay, self.model.weights
        if not decay and (at is None or not rule.corrects):
            if at is not None:
                with self.clock("rule"):
                    rule.push(y, at, -lr)
            self.model.descend(gradient, lr)
            return loss.item()
        g = self.model.flat(gradient)
        if decay:
            g.add_(y, alpha=decay)
        if at is not None:
            with self.clock("rule"):
                rule.gradient(g, y, at)
        y.sub_(g, alpha=lr)
        return loss.item()

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """The precision that forward passes are made in."""
        if self.work.plan.precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(torch.device(self.work.device).type, dtype=torch.bfloat16)

    def mode(self, training: bool) -> None:
        """Training or evaluation mode; walking over all modules is worth avoiding for small models."""
        if self.model.module.training != training:
            self.model.module.train(training)

    @contextlib.contextmanager
    def _drawn_from(self, seed: int) -> Iterator[None]:
        """Dropout draws from torch's default generator: start it at a seed, and put its state back afterwards."""
        before = torch.get_rng_state()
        self._seed(seed)
        try:
            yield
        finally:
            torch.set_rng_state(before)

    def _seed(self, seed: int) -> None:
        if self.work.device == "cpu":
            torch.default_generator.manual_seed(seed)  # torch.manual_seed asks for other devices, which takes longer
        else:
            torch.manual_seed(seed)


def _own(tree: Tree, delta: Tensor) -> Tree:
    """The tree without parts of ``delta``, whose place may be used again."""
    place = delta.untyped_storage().data_ptr()
    return clone(tree) if any(leaf.untyped_storage().data_ptr() == place for leaf in flatten(tree).values()) else tree
