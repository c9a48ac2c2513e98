"""Checks that every data set and server file passes before anything is trained on it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.data.layout import laid_out
from undrift.errors import DataError


def check_labels(y: NDArray[Any], where: str, classes: int | None = None) -> NDArray[np.int64]:
    """Return labels as int64, or say what is wrong with them; `classes`: how many there may be."""
    if y.ndim != 1:
        raise DataError(f"{where}: labels must have one axis, not the shape {y.shape}")
    if not np.issubdtype(y.dtype, np.integer):
        raise DataError(f"{where}: labels must be integers, not {y.dtype}")
    if not len(y):
        raise DataError(f"{where}: no samples")
    low, high = int(y.min()), int(y.max())
    if low < 0:
        raise DataError(f"{where}: label {low} is negative; labels are 0 … classes-1")
    if classes is not None and high >= classes:
        raise DataError(f"{where}: label {high} is out of range 0 … {classes - 1}")
    if classes is None and high >= max(1000, len(y)):
        raise DataError(f"{where}: label {high} is out of range for {len(y)} samples; labels are 0 … classes-1")
    return y.astype(np.int64)


def check_lengths(x: NDArray[Any], y: NDArray[Any], x_name: str, y_name: str) -> None:
    """Inputs and labels must come in pairs."""
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise DataError(f"{x_name} has {x.shape[:1]} samples but {y_name} has {y.shape[:1]}; they must be equal")


def as_pixels(x: NDArray[Any], where: str) -> NDArray[np.uint8]:
    """Bring uint8 images to [n, h, w, c]."""
    if x.ndim == 3:
        x = x[..., None]
    if x.ndim != 4 or 0 in x.shape[1:]:
        raise DataError(f"{where}: uint8 images must be [n,h,w] or [n,h,w,c], not {list(x.shape)}")
    return x


def as_floats(x: NDArray[Any], where: str) -> Tensor:
    """Bring floating inputs, used as they are, to float32: vectors [n, d] or images [n, c, h, w]."""
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim not in (2, 4) or 0 in x.shape[1:]:
        raise DataError(f"{where}: floating inputs must be [n,d], [n,h,w] or [n,c,h,w], not {list(x.shape)}")
    if x.ndim == 4 and x.shape[1] > 4 and x.shape[3] in (1, 3):
        raise DataError(f"{where}: {list(x.shape)} looks like [n,h,w,c]; floating images must be [n,c,h,w]")
    tensor = torch.from_numpy(np.ascontiguousarray(x, dtype=x.dtype.newbyteorder("="))).to(torch.float32)
    bad = int((~torch.isfinite(tensor)).sum())
    if bad:
        raise DataError(f"{where}: {bad} values are NaN or infinite (as float32)")
    return laid_out(tensor)


def kind_of(x: NDArray[Any], where: str) -> str:
    """Say whether an array holds "pixels" (uint8), "floats" or "tokens" (other whole numbers); others are refused."""
    if x.dtype == np.uint8:
        return "pixels"
    if x.dtype.kind == "f" and x.dtype.itemsize <= 8:
        return "floats"
    if x.dtype.kind in "iu":
        return "tokens"
    raise DataError(f"{where}: {x.dtype} cannot be used; inputs are uint8 images, floating point or whole numbers")


def own_inputs(x: NDArray[Any], where: str) -> NDArray[np.uint8] | Tensor:
    """A user's inputs: pixels [n, h, w, c], or a tensor of floats or tokens."""
    kind = kind_of(x, where)
    if kind == "pixels":
        return as_pixels(x, where)
    if kind == "floats":
        return as_floats(x, where)
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(f"{where}: whole-number inputs (tokens) must be [n,t], not {list(x.shape)}")
    return torch.from_numpy(x.astype(np.int64))


def own_targets(y: NDArray[Any], where: str) -> Tensor:
    """A user's targets that are no classes: numbers as float32, whole numbers as int64."""
    if not len(y) or y.ndim == 0:
        raise DataError(f"{where}: no samples")
    if y.dtype.kind == "f":
        tensor = torch.from_numpy(y.astype(np.float32))
        if not torch.isfinite(tensor).all():
            raise DataError(f"{where}: NaN or infinite (as float32)")
        return tensor
    if y.dtype.kind not in "iub":
        raise DataError(f"{where}: {y.dtype} cannot be used; targets are numbers, or words for classes")
    return torch.from_numpy(y.astype(np.int64))


def are_classes(y: NDArray[Any]) -> bool:
    """Whether targets are one whole number or one word for each sample."""
    return y.ndim == 1 and y.dtype.kind in "iuSU"


def known_classes(train: NDArray[Any], test: NDArray[Any], path: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Labels as numbers; words are counted in alphabetical order."""
    if train.dtype.kind not in "SU":
        return train, test
    names = np.unique(train)
    if unseen := sorted(set(np.unique(test).tolist()) - set(names.tolist())):
        raise DataError(f"{path}: y_test: class {unseen[0]!r} is not among the training labels")
    return np.searchsorted(names, train), np.searchsorted(names, test)
