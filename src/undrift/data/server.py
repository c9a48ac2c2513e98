"""The server's own data D_0: drawn from the clients' pooled data, or read from a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core.nested import shape_of
from undrift.core.streams import stream
from undrift.data.checks import as_pixels, check_labels, check_lengths, kind_of, own_inputs, own_targets
from undrift.data.dataset import DataSet, normalised
from undrift.data.formats import read_npz
from undrift.errors import ConfigError, DataError

Ints = NDArray[np.int64]

SOURCES = ("balanced", "iid", "clients", "file")
"""Where server data may come from."""


def server_indices(
    source: str,
    labels: NDArray[Any],
    parts: Sequence[Ints],
    seed: int,
    *,
    size: int | None = None,
    contributors: int | None = None,
    samples: int | None = None,
) -> Ints:
    """Draw the server's samples from what the clients hold; the indices come in ascending order.

    balanced: `size` samples, the same number from each class that the clients hold; what does not
    divide goes to classes drawn at random. iid: `size` samples at random. clients: `contributors`
    clients, drawn from those that have enough, give `samples` each.
    """
    if seed < 0:
        raise ConfigError(f"seed = {seed}: must not be negative")
    rng = stream(seed, "server-data")
    if source == "clients":
        return _from_clients(parts, rng, _whole("contributors", contributors), _whole("samples", samples), size)
    if source not in ("balanced", "iid"):
        raise ConfigError(f"server_data.source = {source!r}: no draw (allowed: balanced, iid, clients)")
    pool = np.sort(np.concatenate(parts))
    count = _whole("size", size)
    if count > len(pool):
        raise DataError(f"server_data.size = {count}: the clients have {len(pool)} samples")
    if source == "iid":
        return np.sort(rng.choice(pool, count, replace=False))
    return _balanced(labels, pool, rng, count)


def load_server_file(path: str | Path, like: DataSet) -> tuple[Tensor, Tensor]:
    """Read server data `x`, `y` from an npz file, in the form of the data set `like`.

    uint8 images are normalised with that data set's constants; floating inputs are used as they are.
    """
    arrays = read_npz(Path(path), ("x", "y"))
    x, y, where = arrays["x"], arrays["y"], f"{path}: x"
    check_lengths(x, y, where, "y")
    if like.y_train.dim() == 1 and not like.y_train.is_floating_point():
        targets = torch.from_numpy(check_labels(y, f"{path}: y", like.classes))
    else:
        targets = own_targets(y, f"{path}: y")
        if targets.shape[1:] != like.y_train.shape[1:] or targets.dtype != like.y_train.dtype:
            raise DataError(f"{path}: y is {shape_of(targets)}, {like.name} has {shape_of(like.y_train)}")
    inputs: Tensor
    if kind_of(x, where) != "pixels":
        found = own_inputs(x, where)
        assert isinstance(found, Tensor)
        inputs = found
    elif like.mean is None or like.std is None:
        raise DataError(f"{where}: uint8 images, but {like.name} was not made from images of that kind; use floats")
    else:
        pixels = as_pixels(x, where)
        if pixels.shape[-1] != len(like.mean):
            raise DataError(f"{where}: {pixels.shape[-1]} channels, {like.name} has {len(like.mean)}")
        inputs = normalised(pixels, like.mean, like.std)
    if inputs.is_floating_point() != like.x_train.is_floating_point():
        raise DataError(f"{where}: {x.dtype} cannot be used, {like.name} has {shape_of(like.x_train)}")
    if tuple(inputs.shape[1:]) != like.shape:
        raise DataError(f"{where}: a sample has the shape {list(inputs.shape[1:])}, {like.name} has {list(like.shape)}")
    return inputs, targets


def _whole(key: str, value: int | None) -> int:
    if value is None:
        raise ConfigError(f"server_data.{key} is missing")
    if value < 1:
        raise DataError(f"server_data.{key} = {value}: must be at least 1")
    return value


def _balanced(labels: NDArray[Any], pool: Ints, rng: np.random.Generator, size: int) -> Ints:
    ids, label = np.unique(labels[pool], return_inverse=True)
    want = np.full(len(ids), size // len(ids))
    want[rng.permutation(len(ids))[: size % len(ids)]] += 1
    have = np.bincount(label)
    short = np.flatnonzero(have < want)
    if len(short):
        k = short[0]
        raise DataError(f"server_data.size = {size}: needs {want[k]} samples of class {ids[k]}, there are {have[k]}")
    shuffled = rng.permutation(len(pool))
    shuffled = shuffled[np.argsort(label[shuffled], kind="stable")]
    rank = np.arange(len(pool)) - np.repeat(np.cumsum(have) - have, have)
    return np.sort(pool[shuffled[rank < np.repeat(want, have)]])


def _from_clients(
    parts: Sequence[Ints], rng: np.random.Generator, contributors: int, samples: int, size: int | None
) -> Ints:
    if size is not None and size != contributors * samples:
        raise DataError(f"server_data.size = {size}: {contributors} contributors x {samples} samples is not that")
    able = [i for i, own in enumerate(parts) if len(own) >= samples]
    if len(able) < contributors:
        raise DataError(
            f"server_data.contributors = {contributors}: "
            f"only {len(able)} clients have server_data.samples = {samples} samples"
        )
    chosen = rng.choice(able, contributors, replace=False)
    return np.sort(np.concatenate([rng.choice(parts[i], samples, replace=False) for i in chosen]))
