"""A client of a split round: forward to the cut, backward from it, in whatever process it is carried out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from undrift.core.nested import Nested, call
from undrift.core.streams import torch_seed
from undrift.core.tree import Tree
from undrift.core.vector import FlatModel
from undrift.rounds.messages import Broadcast, ClientTask
from undrift.rounds.split.messages import ClientUpdate, Gradient, Smashed, Sums, Tally
from undrift.rounds.split.noise import Noise
from undrift.rounds.split.parts import SplitParts


class SplitClient:
    """One client's way through a round; between two synchronisations it is open.

    While it waits for the main server's answer it keeps the graph of its forward pass; or, where a cohort's graphs
    would fill the memory, only its minibatch (``recompute``): then clients share one front, and the forward pass is
    made again, with the same statistics and the same masks.
    """

    def __init__(self, parts: SplitParts, round: int, client: int, kept: Tree) -> None:
        self.parts, self.client, self.kept = parts, client, kept
        self.worker, self.rule, self.plan = parts.worker, parts.work.rule, parts.work.plan
        self.batches = self.worker.client_batches(round, client)
        self.noise = Noise(torch_seed(self.plan.seed, "noise", round, client))
        self.blur = torch.Generator().manual_seed(torch_seed(self.plan.seed, "smashed", round, client))
        self.total = Sums()

    def open(self, broadcast: Broadcast, steps: int, *, recompute: bool) -> None:
        """A synchronisation is over: begin from the server's model, with so many steps to the next one."""
        size, held = self.parts.halves.size, self.parts.halves.buffer_size
        self.lr, self.left, self.recompute = broadcast.lr, steps, recompute
        self.y, self.buffers = broadcast.x[:size], broadcast.buffers[:held]
        self.period, self.tally = Sums(), Tally()
        front = Broadcast(broadcast.round, broadcast.lr, self.y, self.buffers, broadcast.down)
        task = ClientTask(self.client, self.kept)
        self.at = self.worker.open_client(front, task, steps, lambda: self._full_gradient(broadcast))
        self.front: FlatModel | None = None

    def forward(self) -> Smashed:
        """The next minibatch, forward to the cut."""
        front = self._attached()
        inputs, labels = next(self.batches)
        self.rule.shift(front.weights, self.at)
        z = self._forward_later(front, inputs) if self.recompute else self._forward(front, inputs)
        if relative := self.parts.algorithm.smashed_noise:
            z = blurred(z, relative, self.blur)
        if self.recompute:
            self._detach()
        message = Smashed(self.client, z, labels, self.noise.state)
        self.tally.count(message)
        return message

    def backward(self, gradient: Gradient) -> None:
        """Backward from the cut, and one step of the client's part."""
        self.tally.count(gradient)
        self.noise.state = gradient.stream
        front = self._attached()
        y, g = front.weights, front.grad.zero_()
        self.again().backward(gradient.dz)  # type: ignore[no-untyped-call]
        del self.again
        if self.plan.weight_decay:
            g.add_(y, alpha=self.plan.weight_decay)
        self.rule.gradient(g, y, self.at)
        y.sub_(g, alpha=self.lr)
        for sums in (self.period, self.total):
            sums.count(gradient.loss, len(gradient.dz))
        self.left -= 1
        if self.recompute or self.parts.algorithm.alternates or not self.left:
            self._detach()

    def close(self) -> ClientUpdate:
        """What the client hands in at a synchronisation."""
        up, self.kept = self.rule.up(self.y - self.at.x, self.at)
        return ClientUpdate(self.y, self.buffers, up, self.kept, self.at.steps, self.period, self.total, self.tally)

    def _attached(self) -> FlatModel:
        if self.front is None:
            self.front = self.parts.attach(self.y, self.buffers)
        return self.front

    def _detach(self) -> None:
        assert self.front is not None, "only a client that acts can stop acting"
        self.y, self.buffers = self.parts.detach(self.front)
        self.front = None

    def _forward(self, front: FlatModel, x: Nested) -> Tensor:
        with self.noise.drawn(), self.worker.autocast():
            sent = call(front.module, x)
        self.again: Callable[[], Tensor] = lambda: sent
        return sent.detach()

    @torch.no_grad()
    def _forward_later(self, front: FlatModel, x: Nested) -> Tensor:
        before, masks = front.buffers.clone(), Noise.at(self.noise.state)
        with self.noise.drawn(), self.worker.autocast():
            z = call(front.module, x)
        front.buffers.copy_(before)

        def again() -> Tensor:
            with torch.enable_grad(), masks.drawn(), self.worker.autocast():
                return call(self._attached().module, x)

        self.again = again
        return z

    def _full_gradient(self, broadcast: Broadcast) -> Tensor:
        """The gradient of the client's whole loss at the synchronised model, through the cut and back."""
        federation, each = self.parts.work.federation, self.parts.smashed_bytes
        index = federation.rows(self.client)
        self.tally.up += len(index) * (each + federation.pool.bytes_each[1])
        self.tally.down += len(index) * each
        return self.worker.full_gradient(broadcast.x, broadcast.buffers, index)[: self.parts.halves.size]


def blurred(z: Tensor, relative: float, generator: torch.Generator) -> Tensor:
    """Smashed data with Gaussian noise of ``relative`` times their own standard deviation."""
    noise = torch.randn(z.shape, generator=generator, dtype=z.dtype).to(z.device)
    return z + noise * (relative * z.std(correction=0))
