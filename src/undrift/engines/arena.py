"""Memory that forked processes share, and a place in it for what clients keep between rounds.

A client's memory is read where it lies and its successor written beside it: the driver copies only what did not find
room, and a client that has to be run again finds what it kept untouched.
"""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import torch
from torch import Tensor

from undrift.tree import Packing, Tree


def shared(size: int, dtype: torch.dtype) -> Tensor:
    """A zeroed vector in memory that forked processes share; pages take room when they are first touched."""
    if size == 0:
        return torch.empty(0, dtype=dtype)
    buffer = mmap.mmap(-1, size * torch.empty(0, dtype=dtype).element_size())
    return torch.frombuffer(buffer, dtype=dtype)


class Lodged(dict[str, Any]):
    """A tree that lies in an arena; its place is free again when nobody holds the tree any more."""

    def __init__(self, tree: Tree, arena: Arena, place: int) -> None:
        super().__init__(tree)
        self.arena, self.place = arena, place


class Arena:
    """Places for trees of one shape."""

    def __init__(self, packing: Packing, places: int, dtype: torch.dtype) -> None:
        self.packing = packing
        self.memory = shared(places * packing.size, dtype).view(places, packing.size)
        self.free = list(range(places))[::-1]

    def at(self, place: int) -> Tree:
        """The tree at a place, as views."""
        return self.packing.unpack(self.memory[place])

    def lodge(self) -> Lodged:
        """A free place, with whatever lies there."""
        place = self.free.pop()
        tree = Lodged(self.at(place), self, place)
        weakref.finalize(tree, self.free.append, place)
        return tree

    def hold(self, tree: Tree) -> Lodged:
        """The tree itself if it lies here, else a copy that does."""
        if isinstance(tree, Lodged) and tree.arena is self:
            return tree
        lodged = self.lodge()
        self.packing.pack(tree, self.memory[lodged.place])
        return lodged
