"""A federation: pooled training data, which rows each client has, and the data that no client trains on."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from undrift.core.streams import stream
from undrift.data.dataset import laid_out, rows
from undrift.errors import DataError

Pair = tuple[Tensor, Tensor]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Federation:
    """Who has which data. Rows of client ``i``: ``indices[offsets[i]:offsets[i+1]]``, then its share of ``D_0``."""

    x: Tensor
    y: Tensor
    indices: Indices
    offsets: Indices
    server: Pair | None = None
    test: Pair | None = None
    validation: Pair | None = None
    extra: Indices | None = None
    """Rows of ``D_0`` within ``x``, where clients train on it too."""
    extra_size: int = 0
    extra_seed: int = 0
    central: bool = False
    """All data in one place: nothing is sent."""

    def __post_init__(self) -> None:
        """Lay all data out alike: what is computed on never depends on how it came here."""
        for name in ("x", "y"):
            object.__setattr__(self, name, laid_out(getattr(self, name)))
        for name in ("server", "test", "validation"):
            pair = getattr(self, name)
            if pair is not None:
                object.__setattr__(self, name, (laid_out(pair[0]), laid_out(pair[1])))

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
        """The rows of ``x`` and ``y`` that a client trains on."""
        own = self.indices[self.offsets[client] : self.offsets[client + 1]]
        if self.extra is None:
            return own
        if self.extra_size == len(self.extra):
            return np.concatenate([own, self.extra])
        drawn = stream(self.extra_seed, "share", client).choice(self.extra, self.extra_size, replace=False)
        return np.concatenate([own, drawn])

    @property
    def shared_bytes(self) -> int:
        """What sending its share of ``D_0`` to one client costs."""
        if self.server is None or not self.extra_size:
            return 0
        x, y = self.server
        return self.extra_size * (x[0].numel() * x.element_size() + y[0].numel() * y.element_size())

    def pooled(self) -> Federation:
        """All clients' data in one place."""
        return replace(self, offsets=np.array([0, len(self.indices)], dtype=np.int64), central=True)

    def shared(self, share: float, seed: int) -> Federation:
        """Every client gets a share of the server's data besides its own."""
        if self.server is None:
            raise DataError("ds: data sharing needs server data")
        x, y = self.server
        return replace(
            self,
            x=torch.cat([self.x, x.to(self.x.dtype)]),
            y=torch.cat([self.y, y]),
            extra=np.arange(len(self.x), len(self.x) + len(x), dtype=np.int64),
            extra_size=max(1, round(share * len(x))),
            extra_seed=seed,
        )


def federation(
    x: Tensor,
    y: Tensor,
    parts: Sequence[Indices],
    *,
    server: Pair | None = None,
    test: Pair | None = None,
    validation: float = 0.0,
    seed: int = 0,
) -> Federation:
    """A federation on pooled data; ``validation`` holds out that share of every client's rows."""
    held: list[Indices] = []
    if validation:
        parts, held = _hold_out(parts, validation, seed)
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    if not len(sizes) or (sizes == 0).any():
        raise DataError(f"client {int(np.argmin(sizes)) if len(sizes) else 0} has no training data")
    out = np.concatenate(held) if held else np.empty(0, np.int64)
    return Federation(
        x,
        y,
        np.concatenate(parts).astype(np.int64),
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        server,
        test,
        (rows(x, torch.from_numpy(out)), y[torch.from_numpy(out)]) if len(out) else None,
    )


def _hold_out(parts: Sequence[Indices], share: float, seed: int) -> tuple[list[Indices], list[Indices]]:
    kept, held = [], []
    for client, part in enumerate(parts):
        order = stream(seed, "validation", client).permutation(part)
        count = min(round(share * len(part)), len(part) - 1)
        held.append(np.sort(order[:count]))
        kept.append(np.sort(order[count:]))
    return kept, held


def from_clients(clients: Sequence[Pair | Dataset[Pair]], **held_apart: Pair | None) -> Federation:
    """A federation from one data set for each client: tensor pairs, or torch data sets read once into memory."""
    if not len(clients):
        raise DataError("clients: at least one is needed")
    pairs = [_pair(client, f"client {number}") for number, client in enumerate(clients)]
    bounds = np.concatenate([[0], np.cumsum([len(y) for _, y in pairs])]).astype(np.int64)
    parts = [np.arange(a, b, dtype=np.int64) for a, b in itertools.pairwise(bounds)]
    return federation(
        torch.cat([x for x, _ in pairs]),
        torch.cat([y for _, y in pairs]),
        parts,
        **held_apart,  # type: ignore[arg-type]
    )


def _pair(data: Pair | Dataset[Pair], who: str) -> Pair:
    if isinstance(data, tuple | list):
        x, y = (torch.as_tensor(part) for part in data)
    else:
        items = [data[i] for i in range(len(data))]  # type: ignore[arg-type]
        x = torch.stack([torch.as_tensor(item[0]) for item in items])
        y = torch.stack([torch.as_tensor(item[1]) for item in items])
    if len(x) != len(y) or not len(x):
        raise DataError(f"{who}: {len(x)} inputs and {len(y)} labels")
    if x.is_floating_point() and not torch.isfinite(x).all():
        raise DataError(f"{who}: inputs hold NaN or infinities")
    return x, y
