"""Samples to train on or to evaluate on: nested tensors in memory, or data sets that are read when needed.

Both give the same answers to the same questions, wherever they are asked: which samples, in which order, and, where
a data set draws random numbers (augmentation), from (seed, round, client, position) alone.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core.nested import Nested, converted, leaves, length, map_leaves, shape_of
from undrift.core.streams import torch_seed
from undrift.data.layout import laid_out, rows
from undrift.errors import DataError

Batch = tuple[Nested, Nested]
"""Inputs and targets of some samples."""
Collate = Callable[[list[Any]], Batch]
Indices = NDArray[np.int64]
_GATHERED = 1 << 20
"""Bytes of samples that are gathered at once: for small batches most of the time is the call, not the copy."""


@dataclass(frozen=True)
class Visit:
    """Who visits samples when: decides the random numbers of data sets that draw some."""

    seed: int
    round: int = 0
    client: int = 0


class Samples(Protocol):
    """Samples by their number."""

    def __len__(self) -> int: ...

    def take(self, index: Indices, visit: Visit | None = None) -> Batch:
        """Some samples as one batch."""
        ...

    def batches(self, index: Indices, order: Iterator[Indices], visit: Visit) -> Iterator[Batch]:
        """Minibatches of the samples ``index``, in an order of positions within it."""
        ...

    def to(self, device: torch.device | str) -> Samples:
        """The same samples where a run computes, as far as they lie in memory."""
        ...

    def cast(self, dtype: torch.dtype) -> Samples:
        """The same samples with numbers of the model's type."""
        ...

    def fingerprint(self) -> str:
        """A text that is another one if a sample is."""
        ...

    @property
    def bytes_each(self) -> tuple[int, int]:
        """What one sample's inputs and targets take."""
        ...


@dataclass(frozen=True)
class InMemory:
    """Nested tensors; the first axis of every leaf counts the samples."""

    inputs: Nested
    targets: Nested

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", map_leaves(laid_out, self.inputs))
        object.__setattr__(self, "targets", map_leaves(laid_out, self.targets))

    def __len__(self) -> int:
        return length(self.targets)

    def take(self, index: Indices, visit: Visit | None = None) -> Batch:
        """Some samples as one batch."""
        chosen = torch.from_numpy(np.ascontiguousarray(index))
        return self._rows(self.inputs, chosen), self._rows(self.targets, chosen)

    def slice(self, start: int, stop: int) -> Batch:
        """Neighbouring samples, without a copy."""
        return map_leaves(lambda leaf: leaf[start:stop], self.inputs), map_leaves(
            lambda leaf: leaf[start:stop], self.targets
        )

    @staticmethod
    def _rows(nested: Nested, chosen: Tensor) -> Nested:
        if isinstance(nested, Tensor):
            return rows(nested, chosen.to(nested.device))
        return map_leaves(lambda leaf: rows(leaf, chosen.to(leaf.device)), nested)

    def batches(self, index: Indices, order: Iterator[Indices], visit: Visit) -> Iterator[Batch]:
        """Minibatches, gathered several at a time."""
        together = _GATHERED // max(1, self.bytes_each[0])
        for group in grouped(order, together):
            inputs, targets = self.take(index[np.concatenate(group)])
            sizes = [len(positions) for positions in group]
            yield from zip(_split(inputs, sizes), _split(targets, sizes), strict=True)

    def to(self, device: torch.device | str) -> InMemory:
        """The same samples on a device."""
        if all(leaf.device == torch.device(device) for leaf in (*leaves(self.inputs), *leaves(self.targets))):
            return self
        return InMemory(*(map_leaves(lambda leaf: leaf.to(device), part) for part in (self.inputs, self.targets)))

    def cast(self, dtype: torch.dtype) -> InMemory:
        """The same samples with numbers of the model's type; whole-number targets become int64."""
        return InMemory(converted(self.inputs, dtype), _targets(self.targets, dtype))

    def joined(self, other: InMemory) -> InMemory:
        """These samples, then others of the same form."""
        return InMemory(_joined([self.inputs, other.inputs]), _joined([self.targets, other.targets]))

    def fingerprint(self) -> str:
        """A hash of all bytes."""
        digest = hashlib.blake2b(digest_size=16)
        for leaf in (*leaves(self.inputs), *leaves(self.targets)):
            dense = leaf.permute(0, 2, 3, 1) if leaf.dim() == 4 else leaf
            digest.update(f"{leaf.dtype}{list(leaf.shape)}".encode())
            if leaf.numel():
                digest.update(memoryview(dense.detach().cpu().contiguous().numpy()).cast("B"))
        return digest.hexdigest()

    @cached_property
    def bytes_each(self) -> tuple[int, int]:
        """What one sample's inputs and targets take."""
        sizes = [
            sum(leaf[0].numel() * leaf.element_size() if len(leaf) else _empty_bytes(leaf) for leaf in leaves(part))
            for part in (self.inputs, self.targets)
        ]
        return sizes[0], sizes[1]


def labels_of(samples: Samples) -> Indices | None:
    """Class labels; None where targets are no single whole numbers, or are read only when needed."""
    targets = samples.targets if isinstance(samples, InMemory) else None
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.dim() != 1:
        return None
    found: Indices = targets.cpu().numpy()
    return found


def _empty_bytes(leaf: Tensor) -> int:
    return int(np.prod(leaf.shape[1:])) * leaf.element_size()


def _targets(targets: Nested, dtype: torch.dtype) -> Nested:
    def change(leaf: Tensor) -> Tensor:
        if leaf.is_floating_point():
            return leaf.to(dtype)
        return leaf if leaf.dtype == torch.bool else leaf.long()

    return map_leaves(change, targets)


def _split(nested: Nested, sizes: list[int]) -> Iterator[Nested]:
    if isinstance(nested, Tensor):
        yield from torch.split(nested, sizes)
        return
    parts = map_leaves(lambda leaf: torch.split(leaf, sizes), nested)
    for number in range(len(sizes)):
        yield _pick(parts, number, nested)


def _pick(parts: Nested, number: int, like: Nested) -> Nested:
    """The batch of one number out of leaves that are tuples of batches."""
    if isinstance(like, dict):
        return {name: _pick(parts[name], number, value) for name, value in like.items()}
    if isinstance(like, tuple):
        return tuple(_pick(part, number, value) for part, value in zip(parts, like, strict=True))
    return parts[number]


def _joined(many: Sequence[Nested]) -> Nested:
    first = many[0]
    if isinstance(first, dict):
        return {name: _joined([one[name] for one in many]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(_joined([one[place] for one in many]) for place in range(len(first)))
    return torch.cat([one.to(first.dtype) for one in many])


def joined(parts: Sequence[InMemory]) -> InMemory:
    """All samples of several, one after the other."""
    return InMemory(_joined([part.inputs for part in parts]), _joined([part.targets for part in parts]))


def grouped(order: Iterator[Indices], samples: int) -> Iterator[list[Indices]]:
    """Batches in groups of at most so many samples, but at least one batch."""
    group: list[Indices] = []
    held = 0
    for positions in order:
        if group and held + len(positions) > samples:
            yield group
            group, held = [], 0
        group.append(positions)
        held += len(positions)
    if group:
        yield group


@dataclass(frozen=True)
class ReadLazily:
    """Map-style data sets, one after the other; every item is read when it is visited, and again at the next visit."""

    sources: tuple[Any, ...]
    collate: Collate
    dtype: torch.dtype | None = None
    device: torch.device | str = "cpu"
    offsets: Indices = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sizes = [len(source) for source in self.sources]
        object.__setattr__(self, "offsets", np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))

    def __len__(self) -> int:
        return int(self.offsets[-1])

    def take(self, index: Indices, visit: Visit | None = None) -> Batch:
        """Some samples as one batch; without a visit, with the random numbers of no round."""
        visit = visit or Visit(0)
        return self._collated([self._item(int(row), visit, int(row)) for row in index])

    def batches(self, index: Indices, order: Iterator[Indices], visit: Visit) -> Iterator[Batch]:
        """Minibatches, each item read for this visit."""
        position = 0
        for positions in order:
            items = []
            for row in index[positions]:
                items.append(self._item(int(row), visit, position))
                position += 1
            yield self._collated(items)

    def _item(self, row: int, visit: Visit, position: int) -> Any:
        source = int(np.searchsorted(self.offsets, row, side="right")) - 1
        with drawn_from(torch_seed(visit.seed, "item", visit.round, visit.client, position)):
            return self.sources[source][row - int(self.offsets[source])]

    def _collated(self, items: list[Any]) -> Batch:
        batch = checked(self.collate(items), "collate")
        made = InMemory(*batch)
        made = made if self.dtype is None else made.cast(self.dtype)
        made = made.to(self.device)
        return made.inputs, made.targets

    def to(self, device: torch.device | str) -> ReadLazily:
        """The same samples; every batch is moved when it is read."""
        return ReadLazily(self.sources, self.collate, self.dtype, device)

    def cast(self, dtype: torch.dtype) -> ReadLazily:
        """The same samples with numbers of the model's type."""
        return ReadLazily(self.sources, self.collate, dtype, self.device)

    def fingerprint(self) -> str:
        """Of data that are read when needed, only the number of items and some of them are looked at."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(self.offsets.tobytes())
        for row in np.unique(np.linspace(0, len(self) - 1, 16).astype(np.int64)):
            inputs, targets = self.take(np.array([row]))
            digest.update(InMemory(inputs, targets).fingerprint().encode())
        return digest.hexdigest()

    @cached_property
    def bytes_each(self) -> tuple[int, int]:
        """What one sample takes, from the first."""
        return InMemory(*self.take(np.array([0]))).bytes_each


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Python's, NumPy's and torch's default generators start at a seed; their states are put back afterwards."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def checked(pair: Any, who: str) -> Batch:
    """Inputs and targets as nested tensors, or an error that says what they are."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(f"{who}: a pair (inputs, targets) is needed, not {shape_of(pair)}")
    inputs, targets = (map_leaves(lambda leaf: _tensor(leaf, who), part) for part in pair)
    counts = {len(leaf) for part in (inputs, targets) for leaf in leaves(part)}
    if len(counts) != 1 or not counts.isdisjoint({0}):
        raise DataError(f"{who}: inputs {shape_of(inputs)} and targets {shape_of(targets)} differ in length")
    for leaf in leaves(inputs):
        if leaf.is_floating_point() and not torch.isfinite(leaf).all():
            raise DataError(f"{who}: inputs hold NaN or infinities")
    return inputs, targets


def _tensor(leaf: Any, who: str) -> Tensor:
    try:
        tensor = torch.as_tensor(leaf)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
        reason = (str(error).splitlines() or [""])[0]
        raise DataError(f"{who}: {kind} cannot be made a tensor ({reason}); give collate=") from None
    if tensor.dim() == 0:
        raise DataError(f"{who}: a single number where an axis of samples is needed")
    return tensor


def stack(items: list[Any], who: str = "items") -> Batch:
    """The default collation: items ``(inputs, target)``, or dictionaries whose target is ``labels`` or ``label``."""
    first = items[0]
    if isinstance(first, dict):
        key = next((name for name in ("labels", "label") if name in first), None)
        if key is None or len(first) < 2:
            raise DataError(
                f"{who}: dictionaries need 'labels' or 'label' besides inputs, not {sorted(first)}; give collate="
            )
        items = [({name: value for name, value in item.items() if name != key}, item[key]) for item in items]
        inputs = _stacked([item[0] for item in items], who)
        only = next(iter(inputs.values())) if len(inputs) == 1 else inputs
        return only, _stacked([item[1] for item in items], who)
    if not isinstance(first, tuple | list) or len(first) != 2:
        raise DataError(
            f"{who}: an item must be (inputs, target) or a dictionary, not {shape_of(first)}; give collate="
        )
    return _stacked([item[0] for item in items], who), _stacked([item[1] for item in items], who)


def _stacked(values: list[Any], who: str) -> Nested:
    first = values[0]
    if isinstance(first, dict):
        return {name: _stacked([value[name] for value in values], who) for name in first}
    if isinstance(first, tuple):
        return tuple(_stacked([value[place] for value in values], who) for place in range(len(first)))
    try:
        return torch.stack([torch.as_tensor(value) for value in values])
    except (TypeError, ValueError, RuntimeError):
        kinds = sorted({_kind(value) for value in values})[:3]
        raise DataError(f"{who}: items of {', '.join(kinds)} cannot be stacked; give collate=") from None


def _kind(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is None and isinstance(value, list):
        shape = (len(value),)
    name = type(value).__name__
    return (
        f"{name} {list(shape)}" if shape is not None else f"{type(value).__module__}.{name}".removeprefix("builtins.")
    )
