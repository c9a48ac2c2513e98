"""Nested data: a tensor, or dictionaries, tuples and lists of them. What a model takes, what a target is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Nested = Any
"""A tensor, or a dictionary, tuple or list of nested data."""


def map_leaves(change: Callable[[Any], Any], nested: Nested) -> Nested:
    """The same structure with every leaf changed; lists become tuples."""
    if isinstance(nested, Mapping):
        return {name: map_leaves(change, value) for name, value in nested.items()}
    if isinstance(nested, tuple | list):
        return tuple(map_leaves(change, value) for value in nested)
    return change(nested)


def leaves(nested: Nested) -> Iterator[Any]:
    """All leaves, in a fixed order."""
    if isinstance(nested, Mapping):
        for value in nested.values():
            yield from leaves(value)
    elif isinstance(nested, tuple | list):
        for value in nested:
            yield from leaves(value)
    else:
        yield nested


def length(nested: Nested) -> int:
    """How many samples there are."""
    return len(next(leaves(nested)))


def shape_of(nested: Nested) -> str:
    """Shapes and types in a few words: ``[20, 3] float32``, ``{ids: [20, 7] int64, mask: [20, 7] int64}``."""
    if isinstance(nested, Mapping):
        return "{" + ", ".join(f"{name}: {shape_of(value)}" for name, value in nested.items()) + "}"
    if isinstance(nested, tuple | list):
        return "(" + ", ".join(shape_of(value) for value in nested) + ")"
    if isinstance(nested, Tensor):
        return f"{list(nested.shape)} {str(nested.dtype).removeprefix('torch.')}"
    return type(nested).__name__


def call(module: nn.Module, inputs: Nested) -> Tensor:
    """A model's scores for inputs: a dictionary becomes keyword arguments, a tuple positional ones.

    Of what the model returns, a tensor counts, the first part of a tuple, or ``.logits``.
    """
    if isinstance(inputs, Tensor):
        out = module(inputs)
    elif isinstance(inputs, dict):
        out = module(**inputs)
    else:
        out = module(*inputs)
    return out if isinstance(out, Tensor) else scores_of(out)


def scores_of(out: Any) -> Tensor:
    """The part of a model's output that counts."""
    if isinstance(out, Tensor):
        return out
    logits = out.get("logits") if isinstance(out, Mapping) else getattr(out, "logits", None)
    found = out[0] if logits is None and isinstance(out, tuple | list) and out else logits
    if not isinstance(found, Tensor):
        raise TypeError(
            f"the model returns {type(out).__name__}: a tensor, a tuple or an object with .logits is needed"
        )
    return found


def converted(nested: Nested, dtype: torch.dtype) -> Nested:
    """Floating leaves in the model's type; whole numbers and truth values are left alone."""
    return map_leaves(lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf, nested)
