"""Memory that forked processes share, and slots in it for what clients keep between rounds.

A client's state is read where it lies and its successor written beside it: the driver copies only what did not find
a free slot, and a client that has to be run again finds what it kept untouched.
"""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import torch
from torch import Tensor

from undrift.core.tree import Packing, Tree


def shared_memory(size: int, dtype: torch.dtype) -> Tensor:
    """A zeroed vector in memory that forked processes share; pages take room when they are first touched."""
    if size == 0:
        return torch.empty(0, dtype=dtype)
    buffer = mmap.mmap(-1, size * torch.empty(0, dtype=dtype).element_size())
    return torch.frombuffer(buffer, dtype=dtype)


class SlotTree(dict[str, Any]):
    """A tree in a slot of shared memory; the slot is free again when nobody holds the tree any more."""

    def __init__(self, tree: Tree, slots: Slots, number: int) -> None:
        super().__init__(tree)
        self.slots, self.number = slots, number


class Slots:
    """Slots for trees of one shape."""

    def __init__(self, packing: Packing, count: int) -> None:
        self.packing = packing
        self.memory = shared_memory(count * packing.size, packing.dtype).view(count, packing.size)
        self.free = list(range(count))[::-1]

    def at(self, number: int) -> Tree:
        """The tree in a slot, as views."""
        return self.packing.unpack(self.memory[number])

    def allocate(self) -> SlotTree:
        """A free slot, with whatever lies there."""
        number = self.free.pop()
        tree = SlotTree(self.at(number), self, number)
        weakref.finalize(tree, self.free.append, number)
        return tree

    def hold(self, tree: Tree) -> SlotTree:
        """The tree itself if it lies here, else a copy that does."""
        if isinstance(tree, SlotTree) and tree.slots is self:
            return tree
        held = self.allocate()
        self.packing.pack(tree, self.memory[held.number])
        return held
