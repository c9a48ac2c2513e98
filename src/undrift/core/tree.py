"""Nested dictionaries of tensors: what checkpoints, byte counts and engines see of an algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Any]
ALIGNMENT = 64
"""Bytes: torch aligns its own memory so, and what a library computes may depend on it in the last bit."""


def flatten(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a tree under their paths, ``"scaffold/c"``."""
    flat: dict[str, Tensor] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            flat |= flatten(value, f"{path}/")
        else:
            flat[path] = value
    return flat


def unflatten(flat: dict[str, Tensor], like: Tree, prefix: str = "") -> Tree:
    """The tree of the shape of ``like`` whose tensors stand in ``flat`` under their paths."""
    return {
        name: unflatten(flat, value, f"{prefix}{name}/") if isinstance(value, dict) else flat[f"{prefix}{name}"]
        for name, value in like.items()
    }


def nbytes(tree: Tree) -> int:
    """What sending this tree costs."""
    return sum(tensor.numel() * tensor.element_size() for tensor in flatten(tree).values())


def clone(tree: Tree) -> Tree:
    """A tree of tensors of its own."""
    return {name: clone(value) if isinstance(value, dict) else torch.clone(value) for name, value in tree.items()}


def copy_into(source: Tree, target: Tree) -> None:
    """Copy a tree's tensors into those of another one that has at least its names; what lies there already stays."""
    for name, value in source.items():
        if isinstance(value, dict):
            copy_into(value, target[name])
        elif value.device.type != "cpu" or value.data_ptr() != target[name].data_ptr():
            target[name].copy_(value)


@dataclass(frozen=True)
class Packing:
    """How trees of one shape lie in a flat vector: every tensor begins where torch would let it begin.

    The vector is of the tensors' own type; where they are of several types, it is one of bytes.
    """

    like: Tree
    size: int
    starts: dict[str, int]
    dtype: torch.dtype

    @staticmethod
    def of(tree: Tree, *, aligned: bool = True) -> Packing:
        """The packing of trees that look like this one; not ``aligned``: without gaps, as they are sent."""
        flat = flatten(tree)
        dtypes = {tensor.dtype for tensor in flat.values()}
        dtype = dtypes.pop() if len(dtypes) == 1 else torch.uint8 if dtypes else torch.float32
        unit = dtype.itemsize
        starts, end = {}, 0
        for path, tensor in flat.items():
            step = ALIGNMENT // unit if aligned else 1
            starts[path] = -(-end // step) * step
            end = starts[path] + tensor.numel() * tensor.element_size() // unit
        step = ALIGNMENT // min(unit, 4) if aligned else 1
        return Packing(tree, -(-end // step) * step, starts, dtype)

    def pack(self, tree: Tree, out: Tensor) -> None:
        """Copy a tree into a vector of ``size``."""
        flat = flatten(tree)
        for path, like in flatten(self.like).items():
            part = flat[path].reshape(-1)
            self._part(path, like, out).copy_(part if part.dtype == self.dtype else part.contiguous().view(self.dtype))

    def unpack(self, vector: Tensor) -> Tree:
        """The tree as views into a vector (copies, where bytes lie so that they cannot be read in place)."""
        flat = {}
        for path, like in flatten(self.like).items():
            part = self._part(path, like, vector)
            if like.dtype != self.dtype:
                fits = part.storage_offset() % like.element_size() == 0
                part = (part if fits else part.clone()).view(like.dtype)
            flat[path] = part.view(like.shape)
        return unflatten(flat, self.like)

    def _part(self, path: str, like: Tensor, vector: Tensor) -> Tensor:
        start = self.starts[path]
        return vector[start : start + like.numel() * like.element_size() // self.dtype.itemsize]
