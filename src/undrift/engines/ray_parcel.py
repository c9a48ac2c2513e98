"""The work of a run as it lies in Ray's object store: arrays that every node maps instead of copying."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core.nested import map_leaves
from undrift.data.samples import InMemory, Samples
from undrift.rounds.work import Work

Array = NDArray[Any]


def read_only(array: Array) -> Tensor:
    """A tensor on memory that nobody writes to, without a copy."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(array)


@dataclass(frozen=True)
class _Stored:
    """A tensor as an array that Ray can map instead of copying."""

    array: Array
    images: bool

    @staticmethod
    def of(tensor: Tensor) -> _Stored:
        images = tensor.ndim == 4
        dense = (tensor.permute(0, 2, 3, 1) if images else tensor).detach().cpu().contiguous()
        return _Stored(dense.numpy(), images)

    def tensor(self) -> Tensor:
        tensor = read_only(self.array)
        return tensor.permute(0, 3, 1, 2) if self.images else tensor


@dataclass(frozen=True)
class _StoredSamples:
    """Samples as they lie in the object store: what is read when needed travels as it is."""

    inputs: Any
    targets: Any

    @staticmethod
    def of(samples: Samples | None) -> Any:
        if not isinstance(samples, InMemory):
            return samples
        return _StoredSamples(map_leaves(_Stored.of, samples.inputs), map_leaves(_Stored.of, samples.targets))

    def samples(self) -> InMemory:
        return InMemory(*(map_leaves(lambda leaf: leaf.tensor(), part) for part in (self.inputs, self.targets)))


@dataclass(frozen=True)
class Parcel:
    """The work as it lies in the object store; the server's own data stay with the driver."""

    work: Work
    pool: Any
    test: Any
    validation: Any

    @staticmethod
    def of(work: Work) -> Parcel:
        """A run's work, ready to be stored."""
        federation = work.federation
        none = InMemory(torch.empty(0), torch.empty(0))
        bare = replace(federation, pool=none, server=None, test=None, validation=None)
        sets = (federation.pool, federation.test, federation.validation)
        return Parcel(replace(work, federation=bare), *(_StoredSamples.of(samples) for samples in sets))

    def open(self) -> Work:
        """The work, its data where they lie in the store."""
        opened: dict[str, Any] = {
            name: stored.samples() if isinstance(stored, _StoredSamples) else stored
            for name, stored in (("pool", self.pool), ("test", self.test), ("validation", self.validation))
        }
        return replace(self.work, federation=replace(self.work.federation, **opened))
