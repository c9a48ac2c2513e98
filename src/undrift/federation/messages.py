"""Messages between server and sites: a few plain values and one flat vector as raw bytes.

Nothing is unpickled, and nothing is believed: a receiver knows how long the vector must be, of which type, and
for which run, round and client, and refuses everything else with a reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from undrift.errors import RunError

RAW = "undrift.raw"
"""How vectors are written: little-endian numbers, one after the other."""
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "uint8": torch.uint8}
"""Bytes are vectors of several types, one after the other."""
_META_BYTES = 1 << 20
Meta = dict[str, Any]


class RefusedError(RunError):
    """A message that is not what it must be; the text says why."""


def pack(meta: Meta, vector: Tensor | None = None) -> RecordDict:
    """A message of plain values and, if given, a flat vector."""
    records = RecordDict({"meta": ConfigRecord(meta)})
    if vector is not None:
        flat = vector.detach().cpu().contiguous()
        array = Array(_name(flat.dtype), (flat.numel(),), RAW, flat.numpy().tobytes())
        records["vector"] = ArrayRecord({"vector": array})
    return records


def meta_of(content: RecordDict, **fields: type | tuple[type, ...]) -> Meta:
    """The plain values of a message: exactly these fields, of these types."""
    if not isinstance(record := content.get("meta"), ConfigRecord):
        raise RefusedError("no values in the message")
    if set(record) != set(fields):
        raise RefusedError(f"the message holds {sorted(record)} instead of {sorted(fields)}")
    if (size := sum(_size(value) for value in record.values())) > _META_BYTES:
        raise RefusedError(f"{size} bytes of plain values, at most {_META_BYTES} are allowed")
    for name, kind in fields.items():
        if not isinstance(record[name], kind) or (isinstance(record[name], bool) and kind is not bool):
            raise RefusedError(f"{name} = {str(record[name])[:40]!r} is of the wrong type")
    return dict(record)


def vector_of(content: RecordDict, size: int, dtype: torch.dtype) -> Tensor:
    """The vector of a message: so many finite numbers of this type, and nothing besides."""
    if extra := sorted(set(content) - {"meta", "vector"}):
        raise RefusedError(f"unexpected record {extra[0]!r}: only values and one vector are expected")
    record = content.get("vector")
    if not isinstance(record, ArrayRecord) or list(record) != ["vector"]:
        raise RefusedError("the message must hold one vector")
    array = record["vector"]
    if array.dtype != _name(dtype):
        raise RefusedError(f"numbers of type {array.dtype[:20]}, {_name(dtype)} is needed")
    if tuple(array.shape) != (size,):
        raise RefusedError(f"expected shape [{size}], got {list(array.shape)}")
    if array.stype != RAW:
        raise RefusedError(f"vector written as {array.stype[:20]!r}, only {RAW!r} is read")
    wanted = size * torch.empty(0, dtype=dtype).element_size()
    if len(array.data) != wanted:
        raise RefusedError(f"expected {wanted} bytes, got {len(array.data)}")
    vector = torch.frombuffer(bytearray(array.data), dtype=dtype) if size else torch.empty(0, dtype=dtype)
    refuse_infinite([vector])
    return vector


def refuse_infinite(tensors: Iterable[Tensor]) -> None:
    """Refuse NaN and infinities."""
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors):
        raise RefusedError("NaN or infinities in the update")


def check(meta: Meta, **expected: Any) -> None:
    """Refuse a message that is not about what was asked."""
    for name, value in expected.items():
        if meta[name] != value:
            raise RefusedError(f"{name} {str(meta[name])[:40]}, {value} was asked for")


def check_counts(meta: Meta, **most: int) -> None:
    """Refuse impossible losses, and counts beyond what the plan lets a site with so many samples do."""
    if not math.isfinite(meta["loss"]):
        raise RefusedError("the training loss is NaN or infinite")
    for name, bound in most.items():
        if not 1 <= meta[name] <= bound:
            raise RefusedError(f"{name} = {str(meta[name])[:20]}: between 1 and {bound} are possible")


def _size(value: Any) -> int:
    return len(value) * (8 if isinstance(value, list) else 1) if isinstance(value, str | bytes | list) else 8


def _name(dtype: torch.dtype) -> str:
    for name, known in _DTYPES.items():
        if known == dtype:
            return name
    raise RefusedError(f"vectors of {dtype} are not sent")
