"""Memory that forked processes share."""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from undrift.core.tree import Packing, Tree


def shared_memory(size: int, dtype: torch.dtype) -> Tensor:
    """A zeroed vector in memory that forked processes share; pages take room when they are first touched."""
    if size == 0:
        return torch.empty(0, dtype=dtype)
    buffer = mmap.mmap(-1, size * torch.empty(0, dtype=dtype).element_size())
    return torch.frombuffer(buffer, dtype=dtype)


def slots(packing: Packing, count: int) -> list[Tree]:
    """So many trees of one shape in shared memory."""
    memory = shared_memory(count * packing.size, packing.dtype).view(count, packing.size)
    return [packing.unpack(vector) for vector in memory]
