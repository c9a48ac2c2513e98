"""Who owns which training sample. Every scheme gives each sample an owner, or none (-1).

classes    every client has exactly C different classes, m samples of each, no sample twice; clients
           per class as equal as can be. m is the largest number that no class is too small for and
           that keeps n_i = C*m within n/N, so n_i is n/N rounded down to a multiple of C when the
           classes are equally large. What is left over belongs to nobody.
shards     samples sorted by label, cut at round(i*n/(N*s)); each client gets s blocks at random.
dirichlet  each class is split over the clients in proportions drawn from Dir(alpha), all redrawn
           until every client has min_samples (at least 1).
ratio      a share 1-r is spread uniformly; the rest is sorted by label and cut into N blocks,
           block i for client i.
iid        a random split into parts whose sizes differ by one at most.
given      a client id for each sample, or a list of indices for each client.

All randomness comes from the stream "partition" of the seed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.core.files import read_json
from undrift.core.streams import stream
from undrift.core.words import unknown
from undrift.errors import ConfigError, DataError, UnreadableError

Ints = NDArray[np.int64]

SCHEMES = ("iid", "classes", "shards", "dirichlet", "ratio", "given")
"""The schemes that `partition` knows."""


def partition(
    scheme: str,
    labels: NDArray[Any],
    clients: int | None,
    seed: int,
    *,
    classes: int | None = None,
    shards: int | None = None,
    alpha: float | None = None,
    ratio: float | None = None,
    min_samples: int = 10,
    given: NDArray[Any] | Sequence[Sequence[int]] | None = None,
) -> list[Ints]:
    """Split the samples with these `labels` over `clients`; each gets its indices in ascending order.

    `clients` may be None with `given`, which knows the number. `given` is either an array with a
    client's id for each sample (ids become 0 … N-1 in sorted order) or index lists, one per client.
    """
    if scheme not in SCHEMES:
        raise ConfigError(unknown("partition.scheme", scheme, SCHEMES))
    if scheme == "given":
        return _given(given, len(labels), clients)
    if clients is None or clients < 1:
        raise DataError(f"partition.clients = {clients}: must be at least 1")
    if clients > len(labels):
        raise DataError(f"partition.clients = {clients}: more than the {len(labels)} samples")
    if seed < 0:
        raise ConfigError(f"partition.seed = {seed}: must not be negative")
    rng = stream(seed, "partition")
    if scheme == "classes":
        owner = _classes(labels, clients, rng, _whole("classes", classes))
    elif scheme == "shards":
        owner = _shards(labels, clients, rng, _whole("shards", shards))
    elif scheme == "dirichlet":
        owner = _dirichlet(labels, clients, rng, _number("alpha", alpha, "dirichlet"), min_samples)
    elif scheme == "ratio":
        owner = _ratio(labels, clients, rng, _number("ratio", ratio, "ratio"))
    else:
        owner = np.empty(len(labels), np.int64)
        owner[rng.permutation(len(labels))] = _blocks(len(labels), clients)
    return _parts(owner, clients)


def load_indices(path: str | Path) -> list[list[int]]:
    """Read a JSON file with a list of sample indices for each client."""
    try:
        lists = read_json(Path(path))
    except UnreadableError as error:
        raise DataError(f"partition.file {error}") from None
    if not isinstance(lists, list):
        raise DataError(f"{path}: must hold a list of index lists, one for each client")
    for client, own in enumerate(lists):
        if not isinstance(own, list) or not all(type(i) is int for i in own):
            raise DataError(f"{path}: client {client} is not a list of whole numbers")
    return lists


def _whole(key: str, value: int | None) -> int:
    if value is None:
        raise ConfigError(f"partition.{key} is missing: scheme {key!r} needs it")
    if value < 1:
        raise DataError(f"partition.{key} = {value}: must be at least 1")
    return value


def _number(key: str, value: float | None, scheme: str) -> float:
    if value is None:
        raise ConfigError(f"partition.{key} is missing: scheme {scheme!r} needs it")
    return float(value)


def _blocks(n: int, count: int) -> Ints:
    """The block of each of `n` places when they are cut at round(i*n/count)."""
    cuts = np.rint(np.arange(count + 1) * (n / count)).astype(np.int64)
    return np.repeat(np.arange(count), np.diff(cuts))


def _parts(owner: Ints, clients: int) -> list[Ints]:
    """Collect each client's samples; a stable sort leaves them in ascending order."""
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner + 1, minlength=clients + 1)
    if not sizes[1:].all():
        empty = int(np.argmin(sizes[1:]))
        raise DataError(f"partition.clients = {clients}: client {empty} would have no samples")
    ends = np.cumsum(sizes).tolist()
    return [order[a:b] for a, b in itertools.pairwise(ends)]


def _classes(labels: NDArray[Any], clients: int, rng: np.random.Generator, C: int) -> Ints:
    ids, label = np.unique(labels, return_inverse=True)
    size = np.bincount(label)
    if len(ids) < C:
        raise DataError(f"partition.classes = {C}: the data have {len(ids)} classes")
    members = _clients_per_class(clients * C, size, rng)
    m = min(len(labels) // clients // C, int((size[members > 0] // members[members > 0]).min()))
    if m < 1:
        raise DataError(
            f"partition.classes = {C} with partition.clients = {clients}: "
            f"{len(labels)} samples of {len(ids)} classes are too few"
        )
    table = _class_table(members, clients, C, rng)
    place = np.argsort(table.ravel(), kind="stable")  # slots (client, class), class after class
    shuffled = rng.permutation(len(labels))
    shuffled = shuffled[np.argsort(label[shuffled], kind="stable")]  # samples, class after class
    rank = np.arange(len(place)) - np.repeat(np.cumsum(members) - members, members)
    start = np.repeat(np.cumsum(size) - size, members) + rank * m
    owner = np.full(len(labels), -1, np.int64)
    owner[shuffled[start[:, None] + np.arange(m)]] = (place // C)[:, None]
    return owner


def _clients_per_class(slots: int, size: Ints, rng: np.random.Generator) -> Ints:
    """Share the slots out evenly; what does not divide goes to the largest classes, ties at random."""
    members = np.full(len(size), slots // len(size))
    order = rng.permutation(len(size))
    order = order[np.argsort(-size[order], kind="stable")]
    members[order[: slots % len(size)]] += 1
    return members


def _class_table(members: Ints, clients: int, C: int, rng: np.random.Generator) -> Ints:
    """Draw a table [clients, C] of distinct classes per row in which class k stands members[k] times.

    Dealing the classes out in turn gives one such table, because no class has more members than
    there are clients; random swaps between pairs of clients that keep rows distinct then mix it.
    """
    order = rng.permutation(len(members))
    table = np.repeat(order, members[order]).reshape(C, clients).T[rng.permutation(clients)]
    half = clients // 2
    for _ in range(16 * C if 1 < C < len(members) else 0):
        pair = rng.permutation(clients)
        i, j = pair[:half], pair[half : 2 * half]
        a, b = rng.integers(C, size=half), rng.integers(C, size=half)
        mine, other = table[i, a], table[j, b]
        fine = ~((table[i] == other[:, None]).any(1) | (table[j] == mine[:, None]).any(1))
        table[i[fine], a[fine]], table[j[fine], b[fine]] = other[fine], mine[fine]
    return table


def _shards(labels: NDArray[Any], clients: int, rng: np.random.Generator, s: int) -> Ints:
    blocks = clients * s
    if blocks > len(labels):
        raise DataError(
            f"partition.shards = {s} with partition.clients = {clients}: "
            f"{blocks} blocks, but only {len(labels)} samples"
        )
    taker = np.repeat(np.arange(clients), s)[rng.permutation(blocks)]
    owner = np.empty(len(labels), np.int64)
    owner[np.argsort(labels, kind="stable")] = taker[_blocks(len(labels), blocks)]
    return owner


def _dirichlet(labels: NDArray[Any], clients: int, rng: np.random.Generator, alpha: float, min_samples: int) -> Ints:
    if not (np.isfinite(alpha) and alpha > 0):
        raise DataError(f"partition.alpha = {alpha}: must be a number above 0")
    least = max(min_samples, 1)
    if clients * least > len(labels):
        raise DataError(
            f"partition.min_samples = {min_samples} with partition.clients = {clients}: "
            f"needs {clients * least} samples, the data have {len(labels)}"
        )
    ids, label = np.unique(labels, return_inverse=True)
    size = np.bincount(label)
    tries = int(np.clip(1e8 / (clients * len(ids)), 20, 10_000))
    for _ in range(tries):
        shares = rng.dirichlet(np.full(clients, alpha), size=len(ids))
        cuts = np.rint(np.minimum(np.cumsum(shares, axis=1), 1.0) * size[:, None]).astype(np.int64)
        cuts[:, -1] = size
        counts = np.diff(cuts, axis=1, prepend=0)
        if counts.sum(axis=0).min() >= least:
            break
    else:
        raise DataError(
            f"partition.alpha = {alpha} with partition.clients = {clients}: in {tries} draws some client "
            f"always had fewer than partition.min_samples = {min_samples}; raise alpha or lower one of them"
        )
    shuffled = rng.permutation(len(labels))
    owner = np.empty(len(labels), np.int64)
    owner[shuffled[np.argsort(label[shuffled], kind="stable")]] = np.repeat(
        np.tile(np.arange(clients), len(ids)), counts.ravel()
    )
    return owner


def _ratio(labels: NDArray[Any], clients: int, rng: np.random.Generator, r: float) -> Ints:
    if not 0 <= r <= 1:
        raise DataError(f"partition.ratio = {r}: must be from 0 to 1")
    shuffled = rng.permutation(len(labels))
    even = round((1 - r) * len(labels))
    uniform, rest = shuffled[:even], np.sort(shuffled[even:])
    owner = np.empty(len(labels), np.int64)
    owner[uniform] = _blocks(len(uniform), clients)
    owner[rest[np.argsort(labels[rest], kind="stable")]] = _blocks(len(rest), clients)
    return owner


def _given(given: NDArray[Any] | Sequence[Sequence[int]] | None, n: int, clients: int | None) -> list[Ints]:
    if given is None:
        raise ConfigError(
            "partition.scheme = 'given' needs partition.file, or data with a client column (npz, synthetic)"
        )
    if isinstance(given, np.ndarray):
        if given.shape != (n,):
            raise DataError(f"client ids have the shape {given.shape}; the data have {n} samples")
        ids, owner = np.unique(given, return_inverse=True)
        count = len(ids)
    else:
        count, owner = len(given), _owner_of_lists(given, n)
    if clients is not None and clients != count:
        raise DataError(f"partition.clients = {clients}: the given partition has {count} clients")
    return _parts(owner.astype(np.int64), count)


def _owner_of_lists(lists: Sequence[Sequence[int]], n: int) -> Ints:
    sizes = [len(own) for own in lists]
    if not sizes or not all(sizes):
        raise DataError(f"given partition: client {sizes.index(0) if sizes else 0} has no samples")
    flat = np.concatenate([np.asarray(own) for own in lists])
    if flat.dtype.kind not in "iu":
        raise DataError(f"given partition: indices must be whole numbers from 0 to {n - 1}")
    client = np.repeat(np.arange(len(sizes)), sizes)
    wrong = np.flatnonzero((flat < 0) | (flat >= n))
    if len(wrong):
        first = wrong[0]
        raise DataError(f"given partition: client {client[first]} has index {flat[first]}, allowed: 0 … {n - 1}")
    flat = flat.astype(np.int64)
    twice = np.flatnonzero(np.bincount(flat, minlength=n) > 1)
    if len(twice):
        owners = client[flat == twice[0]].tolist()
        raise DataError(f"given partition: index {twice[0]} is given twice (clients {owners[0]} and {owners[1]})")
    owner = np.full(n, -1, np.int64)
    owner[flat] = client
    return owner
