"""A federation: pooled training data, which rows each client has, and the data that no client trains on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.core.streams import stream
from undrift.data.own import pooled, samples_of
from undrift.data.samples import Collate, InMemory, Samples, labels_of
from undrift.errors import DataError

Indices = NDArray[np.int64]
_MANY = 1 << 22
"""Rows above this number are kept in the smallest type that holds them."""


@dataclass(frozen=True)
class Federation:
    """Who has which data. Rows of client ``i``: ``indices[offsets[i]:offsets[i+1]]``, then its share of ``D_0``."""

    pool: Samples
    indices: Indices
    offsets: Indices
    server: Samples | None = None
    test: Samples | None = None
    validation: Samples | None = None
    tests: tuple[Indices, ...] | None = None
    """Rows of the pool that each client keeps for testing, where clients have test data of their own."""
    extra: Indices | None = None
    """Rows of ``D_0`` within the pool, where clients train on it too."""
    extra_size: int = 0
    extra_seed: int = 0
    central: bool = False
    """All data in one place: nothing is sent."""

    def __post_init__(self) -> None:
        if len(self.indices) > _MANY and self.indices.dtype == np.int64:  # a million clients' rows take the most room
            object.__setattr__(self, "indices", self.indices.astype(np.min_scalar_type(self.indices.max())))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Indices:
        """Every client's number of samples."""
        return np.diff(self.offsets) + self.extra_size

    def size(self, client: int) -> int:
        """One client's number of samples (``n_i``)."""
        return int(self.offsets[client + 1] - self.offsets[client]) + self.extra_size

    def rows(self, client: int) -> Indices:
        """The rows of the pool that a client trains on."""
        own = self.indices[self.offsets[client] : self.offsets[client + 1]].astype(np.int64, copy=False)
        if self.extra is None:
            return own
        if self.extra_size == len(self.extra):
            return np.concatenate([own, self.extra])
        drawn = stream(self.extra_seed, "share", client).choice(self.extra, self.extra_size, replace=False)
        return np.concatenate([own, drawn])

    def described(self) -> Iterator[bytes]:
        """Who has which rows, as bytes that do not depend on how the numbers are kept."""
        for start in range(0, len(self.indices), _MANY):
            yield self.indices[start : start + _MANY].astype(np.int64, copy=False).tobytes()
        yield self.offsets.tobytes()

    @property
    def shared_bytes(self) -> int:
        """What sending its share of ``D_0`` to one client costs."""
        if self.server is None or not self.extra_size:
            return 0
        return self.extra_size * sum(self.server.bytes_each)

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """The class labels of the pool; None where targets are no single whole numbers, or are read when needed."""
        return labels_of(self.pool)

    def changed(self, change: Callable[[Samples], Samples]) -> Federation:
        """The same federation with all samples changed in the same way."""
        parts = {"pool": self.pool, "server": self.server, "test": self.test, "validation": self.validation}
        made: dict[str, Any] = {name: change(part) for name, part in parts.items() if part is not None}
        return replace(self, **made)

    def pooled(self) -> Federation:
        """All clients' data in one place."""
        return replace(self, offsets=np.array([0, len(self.indices)], dtype=np.int64), central=True)

    def shared(self, share: float, seed: int) -> Federation:
        """Every client gets a share of the server's data besides its own."""
        if self.server is None:
            raise DataError("ds: data sharing needs server data")
        if not isinstance(self.pool, InMemory) or not isinstance(self.server, InMemory):
            raise DataError("ds: data sharing needs data that lie in memory, not data that are read lazily")
        return replace(
            self,
            pool=self.pool.joined(self.server),
            extra=np.arange(len(self.pool), len(self.pool) + len(self.server), dtype=np.int64),
            extra_size=max(1, round(share * len(self.server))),
            extra_seed=seed,
        )


def federation(
    pool: Samples,
    parts: Sequence[Indices],
    *,
    server: Samples | None = None,
    test: Samples | None = None,
    validation: float = 0.0,
    client_test: float = 0.0,
    seed: int = 0,
) -> Federation:
    """A federation on pooled data; ``validation`` and ``client_test`` hold out that share of every client's rows."""
    tests: list[Indices] = []
    held: list[Indices] = []
    if client_test:
        parts, tests = hold_out(parts, client_test, seed, "client-test")
    if validation:
        parts, held = hold_out(parts, validation, seed, "validation")
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    if not len(sizes) or (sizes == 0).any():
        raise DataError(f"client {int(np.argmin(sizes)) if len(sizes) else 0} has no training data")
    out = np.concatenate(held) if held else np.empty(0, np.int64)
    return Federation(
        pool,
        np.concatenate(parts).astype(np.int64),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        server,
        test,
        InMemory(*pool.take(out)) if len(out) else None,
        tuple(tests) if tests else None,
    )


def hold_out(
    parts: Sequence[Indices], share: float, seed: int, purpose: str
) -> tuple[list[Indices], list[Indices]]:  # fmt: skip
    """A share of every client's rows apart from the rest, at least one row staying."""
    kept, held = [], []
    for client, part in enumerate(parts):
        order = stream(seed, purpose, client).permutation(part)
        count = min(round(share * len(part)), len(part) - 1)
        held.append(np.sort(order[:count]))
        kept.append(np.sort(order[count:]))
    return kept, held


def from_clients(
    clients: Sequence[Any],
    *,
    server: Any = None,
    test: Any = None,
    collate: Collate | None = None,
    lazy: bool | None = None,
    client_test: float = 0.0,
    seed: int = 0,
) -> Federation:
    """A federation from one data set for each client, in any of the forms of :func:`samples_of`."""
    if not len(clients):
        raise DataError("clients: at least one is needed")
    each = [samples_of(data, f"client {number}", collate, lazy) for number, data in enumerate(clients)]
    bounds = np.concatenate([[0], np.cumsum([len(one) for one in each])]).astype(np.int64)
    return federation(
        pooled(list(each), collate),
        [np.arange(a, b, dtype=np.int64) for a, b in itertools.pairwise(bounds)],
        server=None if server is None else samples_of(server, "server_data", collate, lazy),
        test=None if test is None else samples_of(test, "test_data", collate, lazy),
        client_test=client_test,
        seed=seed,
    )
