"""The work of one party on its own data: a client's round, server learning, evaluation.

A client's round is one function of (rule, model, what came down, what was kept, data, settings); engines only
map it over the cohort.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from undrift.core.clock import Clock
from undrift.core.nested import Nested, call, length, map_leaves
from undrift.core.streams import HookRandom, torch_seed
from undrift.core.tree import Tree, clone, copy_into, flatten
from undrift.data.augment import flip_crop
from undrift.data.samples import Batch, Indices, Samples, Visit
from undrift.rounds.device import Place
from undrift.rounds.evaluation import CHUNK, Piece, Score
from undrift.rounds.features import BatchFeatures
from undrift.rounds.messages import Broadcast, ClientTask, Messages, Outcome
from undrift.rounds.precision import autocast
from undrift.rounds.work import Work
from undrift.rules.rule import ClientAt

SERVER = 1 << 40
"""Who visits the server's own samples, where a client's number is asked for."""


class Worker:
    """A model of one's own and the functions that train and evaluate it; holds nothing between calls."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.model = work.flat_model()
        self.model.mode(training=True)
        size, held = self.model.shared.size, self.model.shared_buffers
        self.weights, self.buffers = self.model.weights[:size], self.model.buffers[:held]
        self.grad = self.model.grad[:size]
        """What rules see, and what is sent: all but the layers that never leave a client."""
        self.own: Tree = {"layers": self.model.weights[size:], "buffers": self.model.buffers[held:]}
        self.first_own = clone(self.own) if work.personal else {}
        self.features = BatchFeatures(work, self.model) if work.rule.acting("loss") else None
        self.clock = Clock(work.profile)
        self.place = Place(work.device)
        self.pool = self.place.hold(work.federation.pool)

    def client(self, broadcast: Broadcast, task: ClientTask, delta: Tensor | None = None) -> Outcome:
        """A client's round: from the server model to an update, a message and what the client keeps.

        ``delta``: where to put the update, for engines that have a place for it.
        """
        rule, y, client, round = self.work.rule, self.weights, task.client, broadcast.round
        index = self.work.federation.rows(client)
        noise = torch_seed(self.work.plan.seed, "noise", round, client)
        with self.place.drawn_from(
            noise + 1
        ):  # hooks that draw from the default generator: numbers of this client's own
            self.model.load(broadcast.x, broadcast.buffers)
            copy_into(self.first_own, self.own)
            at = self.open_client(broadcast, task, self.work.plan.steps(len(index)))
            if self.features is not None:
                self.features.open(broadcast.buffers, self.own)
            loss, visits = self.place.mean(), 0
            self.model.mode(training=True)
            self.place.seed(noise)
            for inputs, targets in self.clock.each("data", self.client_batches(round, client)):
                with self.clock("rule"):
                    rule.shift(y, at)
                loss.add(
                    self._step(inputs, targets, broadcast.lr, at, "forward/backward"), self.work.task.size(targets)
                )
                visits += length(targets)
            delta = y - broadcast.x if delta is None else torch.sub(y, broadcast.x, out=delta)
            self.place.seed(noise + 2)
            with self.clock("rule"):
                up, kept = (_own(tree, delta) for tree in rule.up(delta, at))
                sent: Tree = {"delta": delta, "up": up}
                if rule.encoders:
                    sent, more = rule.encode(sent, at)
                    kept |= {name: kept[name] | own for name, own in more.items()}
        return Outcome(
            client, sent["delta"], self.buffers.clone(), sent["up"], kept, loss.value(), visits, at.steps
        )  # fmt: skip

    def messages(self, *, aligned: bool = True) -> Messages:
        """How the messages of this run lie in vectors; not ``aligned``: without gaps, as they are sent."""
        return Messages.of(self.work.rule, self.weights, self.buffers, self.model.shared.personal, aligned=aligned)

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
            own=self.own,
            send=task.send,
            keep=task.keep,
        )
        with self.clock("rule"):
            at.local = self.work.rule.start(at)
        return at

    def client_batches(self, round: int, client: int) -> Iterator[Batch]:
        """A client's minibatches in a round, augmented from its own random stream."""
        plan, index = self.work.plan, self.work.federation.rows(client)
        generator = torch.Generator()
        if plan.augment:
            generator.manual_seed(torch_seed(plan.seed, "augment", round, client))
        order = plan.order(len(index), round, client)
        for inputs, targets in self.pool.batches(index, order, Visit(plan.seed, round, client)):
            yield self.place.moved((flip_crop(inputs, generator) if plan.augment else inputs, targets))

    def learn(
        self, start: Tensor, buffers: Tensor, data: Samples, lr: float, order: Iterator[Indices], noise: int
    ) -> Tensor:
        """Plain local SGD on the server's data."""
        self.model.load(start, buffers)
        self.model.mode(training=True)
        visit = Visit(self.work.plan.seed, noise, SERVER)
        everything = np.arange(len(data))
        with self.place.drawn_from(torch_seed(self.work.plan.seed, "server-noise", noise)):
            for inputs, targets in data.batches(everything, order, visit):
                self._step(*self.place.moved((inputs, targets)), lr, None, "server learning")
        return self.model.weights[: len(start)].clone()

    def full_gradient(self, weights: Tensor, buffers: Tensor, index: Indices, *, decay: bool = True) -> Tensor:
        """The full-batch gradient of a client's mean loss, in evaluation mode (streamed over its data)."""
        return self.gradient_of(self.pool, weights, buffers, index, decay=decay)

    def gradient_of(
        self, data: Samples, weights: Tensor, buffers: Tensor, index: Indices | None = None, *, decay: bool = False
    ) -> Tensor:
        """The full-batch gradient of the mean loss on ``data`` (or its rows ``index``), evaluation mode."""
        index = np.arange(len(data)) if index is None else index
        total = torch.zeros_like(weights)
        with self.loaded(weights, buffers), self.evaluating():
            for start in range(0, len(index), CHUNK):
                chunk = index[start : start + CHUNK]
                self.model.grad.zero_()
                self._loss(*self.place.moved(data.take(chunk, Visit(self.work.plan.seed)))).backward()  # type: ignore[no-untyped-call]
                total.add_(self.model.grad[: len(total)], alpha=len(chunk) / len(index))
        if decay:
            total.add_(weights, alpha=self.work.plan.weight_decay)
        return total

    def mean_loss(self, weights: Tensor, buffers: Tensor, index: Indices) -> float:
        """The mean loss on rows of the clients' data, in evaluation mode."""
        total = 0.0
        with self.loaded(weights, buffers), self.evaluating(), torch.inference_mode():
            for start in range(0, len(index), CHUNK):
                chunk = index[start : start + CHUNK]
                batch = self.place.moved(self.pool.take(chunk, Visit(self.work.plan.seed)))
                total += float(self._loss(*batch)) * len(chunk)
        return total / len(index)

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
        self.model.mode(training=False)
        try:
            yield
        finally:
            self.model.mode(training)

    def evaluate(self, piece: Piece) -> Score:
        """The loaded model on one piece of an evaluation."""
        inputs, targets = self.place.moved(piece.samples(self.work))
        self.model.mode(training=False)
        with self.clock("evaluation"), torch.inference_mode():
            outputs = self.outputs(inputs)
            size = self.work.task.size(targets)
            loss = self.place.number(self.work.loss(outputs, targets)) * size
            sums = self.work.task.counts(outputs, targets)
        seen = [(outputs.cpu(), map_leaves(lambda leaf: leaf.cpu(), targets))] if self.work.metrics else []
        return Score(size, loss, sums, seen)

    def outputs(self, inputs: Nested) -> Tensor:
        """The loaded model's scores."""
        with self.autocast():
            out = call(self.model.module, inputs)
        return out.float() if out.dtype == torch.bfloat16 else out

    def _loss(self, inputs: Nested, targets: Nested) -> Tensor:
        return self.work.loss(self.outputs(inputs), targets)

    def _step(self, inputs: Nested, targets: Nested, lr: float, at: ClientAt | None, part: str) -> Tensor:
        """One SGD step on a batch's mean loss; ``at``: let the rule change the gradient. Returns the loss."""
        with self.clock(part):
            loss = self._loss(inputs, targets)
            if at is not None and self.features is not None:
                self.features.inputs = inputs
                loss = self.work.rule.loss(loss, self.features, at)
            gradient = self.model.differentiate(loss)
        rule, decay, y = self.work.rule, self.work.plan.weight_decay, self.model.weights
        if not decay and (at is None or not rule.corrects):
            if at is not None:
                with self.clock("rule"):
                    rule.push(self.weights, at, -lr)
            self.model.descend(gradient, lr)
            return loss
        g = self.model.flat(gradient)
        if decay:
            g.add_(y, alpha=decay)
        if at is not None:
            with self.clock("rule"):
                rule.gradient(self.grad, self.weights, at)
        y.sub_(g, alpha=lr)
        return loss

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """The precision that forward passes are made in."""
        return autocast(self.work.plan.precision, self.work.device)


def _own(tree: Tree, delta: Tensor) -> Tree:
    """The tree without parts of ``delta``, whose place may be used again."""
    start, end = delta.data_ptr(), delta.data_ptr() + delta.nbytes
    shared = any(leaf.numel() and start <= leaf.data_ptr() < end for leaf in flatten(tree).values())
    return clone(tree) if shared else tree
