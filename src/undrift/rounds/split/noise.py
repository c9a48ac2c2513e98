"""Dropout masks under interleaved steps: every client has a random stream of its own for the whole round."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from undrift.models.layers import Dropout


class Noise:
    """The state of one random stream; torch's global generator draws from it inside ``with noise.drawn()``."""

    def __init__(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(seed).get_state()

    @staticmethod
    def at(state: Tensor) -> Noise:
        """A stream that goes on from a state."""
        noise = Noise(0)
        noise.state = state
        return noise

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        """Go on with this stream, and put the global generator back afterwards."""
        before = torch.get_rng_state()
        torch.set_rng_state(self.state)
        try:
            yield
        finally:
            self.state = torch.get_rng_state()
            torch.set_rng_state(before)


@contextlib.contextmanager
def dealt(module: nn.Module, sizes: Sequence[int], noises: Sequence[Noise]) -> Iterator[None]:
    """In a batch made of several clients' rows, let each client's rows be masked from its own stream.

    So the masks are those that the clients would see one by one.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, Dropout | _DropoutNd)]
    for layer in layers:
        layer.__dict__["forward"] = _dealing(layer, sizes, noises)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


class _dealing:  # noqa: N801 - used like a function
    def __init__(self, layer: nn.Module, sizes: Sequence[int], noises: Sequence[Noise]) -> None:
        self.draw, self.sizes, self.noises = layer.forward, list(sizes), noises

    def __call__(self, x: Tensor) -> Tensor:
        parts = []
        for rows, noise in zip(torch.split(x, self.sizes), self.noises, strict=True):
            with noise.drawn():
                parts.append(self.draw(rows))
        return torch.cat(parts)
