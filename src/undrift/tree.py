"""Nested dictionaries of tensors as flat vectors: what checkpoints, byte counts and engines see of an algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Tree = dict[str, Any]


def leaves(tree: Tree, prefix: str = "") -> dict[str, Tensor]:
    """The tensors of a tree under their paths, ``"scaffold/c"``."""
    flat: dict[str, Tensor] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        if isinstance(value, dict):
            flat |= leaves(value, f"{path}/")
        else:
            flat[path] = value
    return flat


def grow(flat: dict[str, Tensor], like: Tree, prefix: str = "") -> Tree:
    """The tree of the shape of ``like`` whose tensors stand in ``flat`` under their paths."""
    return {
        name: grow(flat, value, f"{prefix}{name}/") if isinstance(value, dict) else flat[f"{prefix}{name}"]
        for name, value in like.items()
    }


def nbytes(tree: Tree) -> int:
    """What sending this tree costs."""
    return sum(tensor.numel() * tensor.element_size() for tensor in leaves(tree).values())


@dataclass(frozen=True)
class Packing:
    """How trees of one shape lie in a flat vector."""

    like: Tree
    size: int

    @staticmethod
    def of(tree: Tree) -> Packing:
        """The packing of trees that look like this one."""
        return Packing(tree, sum(tensor.numel() for tensor in leaves(tree).values()))

    def pack(self, tree: Tree, out: Tensor) -> None:
        """Copy a tree into a vector of ``size``."""
        start = 0
        flat = leaves(tree)
        for path, like in leaves(self.like).items():
            out[start : start + like.numel()].copy_(flat[path].reshape(-1))
            start += like.numel()

    def unpack(self, vector: Tensor) -> Tree:
        """The tree as views into a vector."""
        flat, start = {}, 0
        for path, like in leaves(self.like).items():
            flat[path] = vector[start : start + like.numel()].view(like.shape)
            start += like.numel()
        return grow(flat, self.like)


def clone(tree: Tree) -> Tree:
    """A tree of tensors of its own."""
    return {name: clone(value) if isinstance(value, dict) else torch.clone(value) for name, value in tree.items()}


def copy_into(source: Tree, target: Tree) -> None:
    """Copy a tree's tensors into those of another one that has at least its names."""
    for name, value in source.items():
        if isinstance(value, dict):
            copy_into(value, target[name])
        else:
            target[name].copy_(value)
