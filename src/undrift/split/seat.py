"""A client of a split round: its way through the round, and its seat between two synchronisations."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from undrift.rule import Chain, ClientAt
from undrift.split.messages import Gradient, Smashed
from undrift.split.noise import Noise
from undrift.tree import Tree
from undrift.vector import FlatModel


@dataclass
class Walk:
    """What a client carries through a round: its batches, its random streams, its memory, its sums."""

    client: int
    weight: float
    """Before normalisation."""
    batches: Iterator[tuple[Tensor, Tensor]]
    noise: Noise
    blur: torch.Generator
    """Draws the noise on smashed data."""
    kept: Tree
    loss: float = 0.0
    visits: int = 0
    steps: int = 0

    def count(self, loss: float, samples: int) -> None:
        """Count one step in."""
        self.loss += loss * samples
        self.visits += samples
        self.steps += 1


@dataclass
class Training:
    """What is the same for all clients of a round."""

    rule: Chain
    lr: float
    decay: float
    smashed_noise: float
    autocast: Callable[[], contextlib.AbstractContextManager[object]]
    recompute: bool
    """Make forward passes again for their gradients instead of keeping their graphs."""


@dataclass
class Seat:
    """A client between two synchronisations; ``front`` is its part of the model while it acts.

    While it waits for the main server's answer it keeps the graph of its forward pass; or, where a cohort's graphs
    would fill the memory, only its minibatch (``recompute``): then clients share one ``front``, and the forward pass
    is made again, with the same statistics and the same masks.
    """

    walk: Walk
    at: ClientAt
    y: Tensor
    """Its part; up to date while it does not act."""
    buffers: Tensor
    """Its part's running statistics; up to date while it does not act."""
    main_buffers: Tensor
    """The server part's running statistics as this client's batches make them."""
    left: int
    """Steps still to come."""
    front: FlatModel | None = None
    main: Tensor | None = None
    """Its copy of the server part after its last step, where clients have copies."""
    loss: float = 0.0
    visits: int = 0
    again: Callable[[], Tensor] = field(init=False)
    """Smashed data with their graph."""

    def take(self, front: FlatModel) -> None:
        """Sit down."""
        front.load(self.y, self.buffers)
        self.front = front

    def leave(self) -> FlatModel:
        """Stand up and give the model back."""
        front, self.front = self._front(), None
        self.y, self.buffers = front.weights.clone(), front.buffers.clone()
        return front

    def smash(self, training: Training) -> Smashed:
        """The next minibatch, forward to the cut."""
        front = self._front()
        x, labels = next(self.walk.batches)
        training.rule.shift(front.weights, self.at)
        z = self._forward_later(x, training) if training.recompute else self._forward(x, training)
        if training.smashed_noise:
            z = blurred(z, training.smashed_noise, self.walk.blur)
        return Smashed(self.walk.client, z, labels)

    def _forward(self, x: Tensor, training: Training) -> Tensor:
        with self.walk.noise.drawn(), training.autocast():
            sent: Tensor = self._front().module(x)
        self.again = lambda: sent
        return sent.detach()

    @torch.no_grad()
    def _forward_later(self, x: Tensor, training: Training) -> Tensor:
        front = self._front()
        before, masks = front.buffers.clone(), Noise.at(self.walk.noise.state)
        with self.walk.noise.drawn(), training.autocast():
            z: Tensor = front.module(x)
        front.buffers.copy_(before)

        def again() -> Tensor:
            with torch.enable_grad(), masks.drawn(), training.autocast():
                sent: Tensor = self._front().module(x)
            return sent

        self.again = again
        return z

    def learn(self, gradient: Gradient, loss: float, training: Training) -> None:
        """Backward from the cut, and one step of the client's part."""
        front = self._front()
        y, g = front.weights, front.grad.zero_()
        self.again().backward(gradient.dz)  # type: ignore[no-untyped-call]
        del self.again
        if training.decay:
            g.add_(y, alpha=training.decay)
        training.rule.gradient(g, y, self.at)
        y.sub_(g, alpha=training.lr)
        samples = len(gradient.dz)
        self.walk.count(loss, samples)
        self.loss += loss * samples
        self.visits += samples
        self.left -= 1

    def _front(self) -> FlatModel:
        assert self.front is not None, "a client acts only while it sits"
        return self.front


def blurred(z: Tensor, relative: float, generator: torch.Generator) -> Tensor:
    """Smashed data with Gaussian noise of ``relative`` times their own standard deviation."""
    noise = torch.randn(z.shape, generator=generator, dtype=z.dtype).to(z.device)
    return z + noise * (relative * z.std(correction=0))
