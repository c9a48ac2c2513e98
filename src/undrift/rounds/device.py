"""Where a run computes: on which device, how data get there, how sums are made without waiting for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from undrift.core.nested import leaves, map_leaves
from undrift.data.samples import Batch, InMemory, Samples

_SHARE = 0.4
"""Of a device's free memory, what data may take."""


class Place:
    """A device."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self.here = self.device.type == "cpu"

    def hold(self, samples: Samples) -> Samples:
        """Samples on the device for good, where they fit; else they stay, and every batch is moved."""
        if self.here or not isinstance(samples, InMemory) or not self._fits(samples):
            return samples
        return samples.to(self.device)

    def _fits(self, samples: InMemory) -> bool:
        if self.device.type != "cuda":
            return self.device.type == "meta"
        needed = sum(leaf.nbytes for part in (samples.inputs, samples.targets) for leaf in leaves(part))
        return bool(needed < _SHARE * torch.cuda.mem_get_info(self.device)[0])

    def moved(self, batch: Batch) -> Batch:
        """A batch on the device."""
        if self.here:
            return batch
        return map_leaves(self._move, batch[0]), map_leaves(self._move, batch[1])

    def _move(self, leaf: Tensor) -> Tensor:
        if leaf.device.type == self.device.type:
            return leaf
        pinned = leaf.pin_memory() if self.device.type == "cuda" else leaf
        return pinned.to(self.device, non_blocking=True)

    def number(self, value: Tensor) -> Any:
        """A value as a number; on another device it stays there, so that nobody has to wait for it."""
        return value.item() if self.here else value.detach()

    def mean(self) -> Mean:
        """A weighted mean that is made on the device."""
        return Mean(self)

    def seed(self, seed: int) -> None:
        """Start torch's default generators at a seed."""
        if self.here:
            torch.default_generator.manual_seed(seed)  # torch.manual_seed asks for other devices, which takes longer
        else:
            torch.manual_seed(seed)

    @contextlib.contextmanager
    def drawn_from(self, seed: int) -> Iterator[None]:
        """Dropout draws from torch's default generator: start it at a seed, and put its state back afterwards."""
        before = torch.get_rng_state()
        self.seed(seed)
        try:
            yield
        finally:
            torch.set_rng_state(before)


class Mean:
    """Losses times their weights, added up; in 64 bits where the device has them."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.total: Any = 0.0
        self.weight: Any = 0

    def add(self, loss: Tensor, weight: Any) -> None:
        """Count one batch in."""
        number = self.place.number(loss)
        weight = self.place.number(weight) if isinstance(weight, Tensor) else weight
        if isinstance(number, Tensor) and self.place.device.type != "mps":
            number = number.double()
        self.total = self.total + number * weight
        self.weight = self.weight + weight

    def value(self) -> Any:
        """The mean."""
        return self.total / self.weight
