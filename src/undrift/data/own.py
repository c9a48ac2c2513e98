"""A user's own data in any of their usual forms: pairs, torch data sets, Hugging Face data sets, lists of items."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import IterableDataset, Subset, TensorDataset

from undrift.core.nested import leaves
from undrift.data.samples import Collate, InMemory, ReadLazily, Samples, checked, drawn_from, joined, stack
from undrift.errors import DataError

_PROBED = 3
"""Items that are read twice to find out whether a data set draws random numbers."""


def samples_of(
    data: Any, who: str, collate: Collate | None = None, lazy: bool | None = None
) -> InMemory | ReadLazily:  # fmt: skip
    """Samples of data in any form; ``who`` names their owner in messages.

    ``lazy``: True reads items at every visit, False once; None reads them once and refuses a data set whose items
    differ from visit to visit.
    """
    if isinstance(data, InMemory | ReadLazily):
        return data
    if isinstance(data, tuple | list) and len(data) == 2:
        return InMemory(*checked(data, who))
    if (tensors := _tensors(data)) is not None and collate is None:
        inputs = tensors[0] if len(tensors) == 2 else tuple(tensors[:-1])
        return InMemory(*checked((inputs, tensors[-1]), who))
    if isinstance(data, IterableDataset) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise DataError(
            f"{who}: a pair (inputs, targets) or a data set with a length and items is needed, not {_kind(data)}"
        )
    if not len(data):
        raise DataError(f"{who}: no samples")
    make = collate or (lambda items: stack(items, who))
    if lazy:
        found = ReadLazily((data,), make)
        checked(make([_read(data, 0)]), who)
        return found
    if lazy is None:
        _refuse_random(data, who)
    return InMemory(*checked(make([_read(data, place) for place in range(len(data))]), who))


def _kind(data: Any) -> str:
    return f"{type(data).__module__}.{type(data).__qualname__}".removeprefix("builtins.")


def _read(data: Any, place: int) -> Any:
    with drawn_from(place):
        return data[place]


def _tensors(data: Any) -> tuple[torch.Tensor, ...] | None:
    """The tensors of a ``TensorDataset``, or of a part of one."""
    if isinstance(data, TensorDataset):
        return data.tensors if len(data.tensors) >= 2 else None
    if isinstance(data, Subset) and isinstance(data.dataset, TensorDataset) and len(data.dataset.tensors) >= 2:
        index = torch.as_tensor(list(data.indices))
        return tuple(tensor[index] for tensor in data.dataset.tensors)
    return None


def _refuse_random(data: Any, who: str) -> None:
    for place in range(min(_PROBED, len(data))):
        reads = []
        for seed in (0, 1):
            with drawn_from(seed):
                reads.append(data[place])
        if not _same(*reads):
            raise DataError(
                f"{who}: item {place} differs from visit to visit (augmentation?): lazy=True reads items anew at every "
                "visit, lazy=False keeps what the first visit gives"
            )


def _same(one: Any, other: Any) -> bool:
    parts = list(zip(leaves(one), leaves(other), strict=False))
    return all(_equal(a, b) for a, b in parts)


def _equal(a: Any, b: Any) -> bool:
    try:
        return bool(torch.equal(torch.as_tensor(a), torch.as_tensor(b)))
    except (TypeError, ValueError, RuntimeError):
        return bool(
            a is b or repr(a) == repr(b) or getattr(a, "tobytes", lambda: a)() == getattr(b, "tobytes", lambda: b)()
        )


def pooled(parts: list[Samples], collate: Collate | None) -> Samples:
    """All clients' samples as one pool; in memory if all of them are."""
    if all(isinstance(part, InMemory) for part in parts):
        return joined([part for part in parts if isinstance(part, InMemory)])
    sources: list[Any] = []
    make: Collate = collate or stack
    for part in parts:
        if isinstance(part, ReadLazily):
            sources += part.sources
        else:
            raise DataError("clients: some are read lazily and some are in memory; give all of them as data sets")
    return ReadLazily(tuple(sources), make)
