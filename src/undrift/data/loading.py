"""Load a data set by its name, from files in their published formats."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core.plugins import place_of
from undrift.core.streams import stream
from undrift.core.words import unknown
from undrift.data.by_name import data_by_name
from undrift.data.checks import are_classes, check_labels, check_lengths, known_classes, own_inputs, own_targets
from undrift.data.dataset import DataSet, channel_stats, normalised
from undrift.data.folders import read_images
from undrift.data.formats import read_cifar, read_idx, read_npz, read_stl
from undrift.data.layout import rows
from undrift.data.samples import InMemory
from undrift.data.synthetic import synthetic
from undrift.data.tables import read_csv
from undrift.errors import ConfigError, DataError

OWN = ("npz", "csv", "images")
"""A user's own files, at ``data.path``."""
NAMES = ("digits", "mnist", "fashion-mnist", "emnist", "cifar10", "cifar100", "stl10", "synthetic", *OWN)
"""The names that `load` knows."""

EMNIST_CLASSES = {"balanced": 47, "byclass": 62, "bymerge": 47, "letters": 26, "digits": 10, "mnist": 10}

# Published per-channel constants of the training images; the other sets are measured when loaded.
CONSTANTS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


@dataclass(frozen=True)
class Raw:
    """A data set before normalisation: arrays of pixels, or tensors that are used as they are."""

    x_train: NDArray[np.uint8] | Tensor
    y_train: NDArray[np.int64]
    x_test: NDArray[np.uint8] | Tensor
    y_test: NDArray[np.int64]
    classes: int
    client: NDArray[Any] | None = None
    scale: float = 255.0


def load(
    name: str,
    *,
    root: str | Path | None = None,
    path: str | Path | None = None,
    split: str = "balanced",
    classes: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    samples: int = 10_000,
    features: int = 60,
    heterogeneity: float = 1.0,
    clients: int = 30,
    label: str | None = None,
    client: str | None = None,
    test_path: str | Path | None = None,
    test_share: float = 0.2,
    standardise: bool = True,
    numbers: bool = False,
    size: int | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> DataSet:
    """Load data set `name`, normalised with its training mean and deviation.

    Args:
        name: one of `NAMES`, or `package.module:function` of one's own.
        root: the folder of data sets; default `$UNDRIFT_DATA`, else the user's cache folder.
        path: the file of `npz` (`x_train`, `y_train`, `x_test`, `y_test`, optionally `client`) or `csv`, or the
            folder of `images`.
        split: which split of `emnist`; any whose files are there.
        classes: keep the first so many classes (`synthetic`: how many there are, default 10).
        limit: keep the first so many training samples of a shuffle seeded with `seed`.
        seed: of that shuffle, and of `synthetic`.
        samples: training samples of `synthetic`; a fifth as many test samples come on top.
        features: length of an input of `synthetic`.
        heterogeneity: how much the clients of `synthetic` differ; 0: not at all.
        clients: how many clients `synthetic` has.
        label: the column of a `csv` that is the target.
        client: the column of a `csv` that says whose row it is.
        test_path: another `csv` with the test rows.
        test_share: else, the share of rows (or `images`) that is drawn for testing.
        standardise: bring columns of a `csv` to mean 0 and deviation 1.
        numbers: targets are numbers (regression), not classes.
        size: width and height that `images` are brought to.
        arguments: of a function of one's own.
    """
    if seed < 0:
        raise ConfigError(f"seed = {seed}: must not be negative")
    if name not in NAMES:
        if place_of(name) is None:
            raise ConfigError(unknown("data.name", name, NAMES))
        return _limited(data_by_name(name, dict(arguments or {})), limit, seed)
    if name in OWN and path is None:
        raise ConfigError(f"data.path is missing: data.name = {name!r} needs it")
    if name == "csv":
        made = read_csv(
            Path(path or ""),
            label=label,
            client=client,
            test_path=None if test_path is None else Path(test_path),
            test_share=test_share,
            numbers=numbers,
            standardise=standardise,
            seed=seed,
        )
        return _limited(made, limit, seed)
    if name == "images":
        return _limited(read_images(Path(path or ""), size=size, test_share=test_share, seed=seed), limit, seed)
    if name == "synthetic":
        made = synthetic(
            samples=samples,
            features=features,
            classes=10 if classes is None else classes,
            heterogeneity=heterogeneity,
            clients=clients,
            seed=seed,
        )
        return _limited(made, limit, seed)
    if name == "npz":
        return _limited(_npz(Path(path or ""), classes, numbers), limit, seed)
    raw = _emnist(data_root(root), split) if name == "emnist" else READERS[name](data_root(root))
    return _limited(_finish(name, raw, classes), limit, seed)


def data_root(root: str | Path | None = None) -> Path:
    """Where data sets live: `root`, else `$UNDRIFT_DATA`, else the user's cache folder."""
    return Path(root or os.environ.get("UNDRIFT_DATA") or platformdirs.user_cache_dir("undrift")).expanduser()


def _finish(name: str, raw: Raw, classes: int | None) -> DataSet:
    """Keep the first classes, check labels, normalise."""
    y_train = check_labels(raw.y_train, f"{name}: training labels", raw.classes)
    y_test = check_labels(raw.y_test, f"{name}: test labels", raw.classes)
    if classes is not None and not 1 <= classes <= raw.classes:
        raise DataError(f"data.classes = {classes}: {name} has {raw.classes} classes (allowed: 1 … {raw.classes})")
    count = raw.classes if classes is None else classes
    keep, keep_test = y_train < count, y_test < count
    for part, kept in (("training", keep), ("test", keep_test)):
        if not kept.any():
            raise DataError(f"data.classes = {classes}: no {part} sample of {name} is left")
    mean = std = None
    if isinstance(raw.x_train, np.ndarray):
        mean, std = CONSTANTS.get(name) or channel_stats(raw.x_train, raw.scale)
    x_train, x_test = (
        normalised(x if k.all() else x[k], mean, std, raw.scale)
        if isinstance(x, np.ndarray) and mean and std
        else rows(torch.as_tensor(x), torch.from_numpy(np.flatnonzero(k)))
        for x, k in ((raw.x_train, keep), (raw.x_test, keep_test))
    )
    client = None if raw.client is None else raw.client[keep]
    y_train, y_test = y_train[keep], y_test[keep_test]
    train, test = InMemory(x_train, torch.from_numpy(y_train)), InMemory(x_test, torch.from_numpy(y_test))
    return DataSet(name, train, test, count, client, mean, std)


def _limited(data: DataSet, limit: int | None, seed: int) -> DataSet:
    """Keep the first `limit` training samples of a seeded shuffle, in its order."""
    if limit is None:
        return data
    if not 1 <= limit <= len(data.train):
        raise DataError(f"data.limit = {limit}: {data.name} has {len(data.train)} training samples")
    if not isinstance(data.train, InMemory):
        raise DataError(f"data.limit = {limit}: {data.name} is read lazily; limit it where it is made")
    chosen = stream(seed, "limit").permutation(len(data.train))[:limit]
    client = None if data.client is None else data.client[chosen]
    return replace(data, train=InMemory(*data.train.take(chosen)), client=client)


def _digits(root: Path) -> Raw:
    """The 8x8 digits that come with scikit-learn; every fifth sample of a class is for testing."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise DataError("data.name = 'digits' needs scikit-learn: pip install scikit-learn")
    # Read as a file: importing scikit-learn takes longer than the first rounds of training.
    with gzip.open(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz", "rt") as file:
        table = np.array([line.split(",") for line in file], dtype=np.float64).astype(np.int64)
    x, y = table[:, :-1].reshape(-1, 8, 8, 1).astype(np.uint8), table[:, -1]
    rank = np.empty(len(y), np.int64)
    for label in range(10):
        rank[y == label] = np.arange(np.count_nonzero(y == label))
    test = rank % 5 == 4
    return Raw(x[~test], y[~test], x[test], y[test], 10, scale=16.0)


def _idx_pair(folder: Path, prefix: str, get: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    return read_idx(folder / f"{prefix}-images-idx3-ubyte.gz", folder / f"{prefix}-labels-idx1-ubyte.gz", get)


def _mnist(name: str) -> Callable[[Path], Raw]:
    def read(root: Path) -> Raw:
        return Raw(*_idx_pair(root / name, "train", name), *_idx_pair(root / name, "t10k", name), 10)

    return read


def _emnist(root: Path, split: str) -> Raw:
    """One split of EMNIST; NIST's files have rows and columns swapped, `letters` counts from 1."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", split):
        raise ConfigError(f"data.split = {split!r} is not a name (official: {', '.join(EMNIST_CLASSES)})")
    folder = root / "emnist"
    there = sorted(
        found.name.removeprefix("emnist-").split("-train-images")[0]
        for found in folder.glob("emnist-*-train-images-idx3-ubyte*")
    )
    if split not in there and split not in EMNIST_CLASSES:
        allowed = ", ".join(dict.fromkeys((*EMNIST_CLASSES, *there)))
        raise DataError(f"data.split = {split!r}: no such files in {folder} (allowed: {allowed})")
    pairs = [_idx_pair(folder, f"emnist-{split}-{part}", "emnist") for part in ("train", "test")]
    shift = 1 if split == "letters" else 0
    (x, y), (x_test, y_test) = ((x.transpose(0, 2, 1, 3), y - shift) for x, y in pairs)
    known = EMNIST_CLASSES.get(split)
    return Raw(x, y, x_test, y_test, known if known else int(y.max(initial=0)) + 1)


def _cifar10(root: Path) -> Raw:
    folder = root / "cifar-10-batches-bin"
    train = [folder / f"data_batch_{i}.bin" for i in range(1, 6)]
    return Raw(*read_cifar(train, 1, "cifar10"), *read_cifar([folder / "test_batch.bin"], 1, "cifar10"), 10)


def _cifar100(root: Path) -> Raw:
    train, test = (read_cifar([root / "cifar-100-binary" / f"{part}.bin"], 2, "cifar100") for part in ("train", "test"))
    return Raw(*train, *test, 100)


def _stl10(root: Path) -> Raw:
    folder = root / "stl10_binary"
    train, test = (read_stl(folder / f"{part}_X.bin", folder / f"{part}_y.bin", "stl10") for part in ("train", "test"))
    return Raw(*train, *test, 10)


READERS: dict[str, Callable[[Path], Raw]] = {
    "digits": _digits,
    "mnist": _mnist("mnist"),
    "fashion-mnist": _mnist("fashion-mnist"),
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "stl10": _stl10,
}


def _npz(path: Path, classes: int | None, numbers: bool) -> DataSet:
    """A user's own arrays. As many classes as the largest training label says."""
    arrays = read_npz(path, ("x_train", "y_train", "x_test", "y_test"), ("client",))
    x_train, x_test = (own_inputs(arrays[f"x_{part}"], f"{path}: x_{part}") for part in ("train", "test"))
    for part in ("train", "test"):
        check_lengths(arrays[f"x_{part}"], arrays[f"y_{part}"], f"{path}: x_{part}", f"y_{part}")
    if type(x_train) is not type(x_test) or x_train.shape[1:] != x_test.shape[1:]:
        kinds = [f"{arrays[k].dtype} {list(arrays[k].shape[1:])}" for k in ("x_train", "x_test")]
        raise DataError(f"{path}: x_train ({kinds[0]}) and x_test ({kinds[1]}) must be alike")
    client = _client_ids(arrays, path)
    y_train, y_test = arrays["y_train"], arrays["y_test"]
    if numbers or not are_classes(y_train):
        return _of_numbers(path, (x_train, x_test), (y_train, y_test), client)
    y_train, y_test = known_classes(y_train, y_test, path)
    y_train = check_labels(y_train, f"{path}: y_train")
    count = int(y_train.max()) + 1
    return _finish(
        "npz", Raw(x_train, y_train, x_test, check_labels(y_test, f"{path}: y_test", count), count, client), classes
    )


def _of_numbers(path: Path, x: Sequence[Any], y: Sequence[NDArray[Any]], client: NDArray[Any] | None) -> DataSet:
    """Targets that are numbers, several to a sample, or tokens: taken as they are."""
    mean = std = None
    if isinstance(x[0], np.ndarray):
        mean, std = channel_stats(x[0], 255.0)
        x = [normalised(pixels, mean, std) for pixels in x]
    targets = [own_targets(values, f"{path}: y_{part}") for values, part in zip(y, ("train", "test"), strict=True)]
    outputs = int(np.prod(targets[0].shape[1:]))
    return DataSet("npz", InMemory(x[0], targets[0]), InMemory(x[1], targets[1]), outputs, client, mean, std)


def _client_ids(arrays: Mapping[str, NDArray[Any]], path: Path) -> NDArray[Any] | None:
    client = arrays.get("client")
    if client is None:
        return None
    if client.shape != arrays["y_train"].shape[:1]:
        raise DataError(f"{path}: client has the shape {client.shape}, y_train {arrays['y_train'].shape}")
    if client.dtype.kind not in "iuSU":
        raise DataError(f"{path}: client ids must be integers or strings, not {client.dtype}")
    return client
