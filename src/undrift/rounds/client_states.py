"""What clients keep between rounds (``c_i``, ``h_i``): in memory while small, on disk when large.

Only clients that took part use any room. In memory a client's tensors lie side by side in a place of the store's own,
and become a tree again when they are asked for. On disk a client's memory is one safetensors file for each round in
which it changed, memory-mapped when read; a checkpoint names the files that are valid, so that an interruption
never mixes rounds.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import load, save
from torch import Tensor

from undrift.core.files import digest, make_durable, read_with, write_atomic
from undrift.core.private_memory import PrivateMemory
from undrift.core.tree import Packing, Tree, clone, flatten, nbytes, unflatten
from undrift.errors import RunError

Held = memoryview | Tree
"""What a client keeps, in the store's own memory: a place in it; on other devices than the processor, tensors."""


class ClientStates:
    """Client memories by client id."""

    def __init__(
        self, like: Tree, folder: Path | None = None, budget: int = 2 << 30, device: torch.device | str = "cpu"
    ) -> None:
        self.like = like
        self.device = device
        self.budget = budget
        self.each = nbytes(like)
        self.folder = folder or Path(tempfile.mkdtemp(prefix="undrift-"))
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self._packing = Packing.of(like)
        self._places = PrivateMemory(self._packing.size * self._packing.dtype.itemsize)
        self._memory: dict[int, Held] = {}
        self._dirty: dict[int, int] = {}
        self._files: dict[int, str] = {}
        self._own = folder is None
        self.checksums: dict[str, str] = {}
        """Of every valid file."""

    def get(self, client: int) -> Tree | None:
        """What the client kept, or None if it never took part."""
        if not self.each:
            return None
        if client in self._memory:
            return self._tree(self._memory[client])
        if client in self._files:
            return unflatten(self._read(client), self.like)
        return None

    def _read(self, client: int) -> dict[str, Tensor]:
        """A client's file, as tensors where the run computes (in memory of their own: a file's may lie anywhere)."""
        path = self.folder / self._files[client]
        stored = read_with(path, load)
        refuse_other_shapes(stored, self.like, str(path))
        return {path: tensor.to(self.device, copy=True) for path, tensor in stored.items()}

    def hold(self, kept: Tree) -> Held:
        """A copy of what a client keeps, to be put into the store when its round counts."""
        if torch.device(self.device).type != "cpu":
            return clone(kept)
        place = self._places.place()
        self._packing.pack(kept, self._vector(place))
        return place

    def _tree(self, held: Held) -> Tree:
        return self._packing.unpack(self._vector(held)) if isinstance(held, memoryview) else held

    def _vector(self, place: memoryview) -> Tensor:
        return torch.frombuffer(place, dtype=self._packing.dtype)

    def put(self, client: int, kept: Held, round: int) -> None:
        """Replace what the client keeps; call it only for rounds that count."""
        if not self.each:
            return
        self._memory[client] = kept if isinstance(kept, memoryview) else self.hold(kept)
        self._dirty[client] = round
        if len(self._memory) * self.each > self.budget:
            self.flush()
            self._memory.clear()

    def flush(self) -> dict[int, str]:
        """Write what has changed; returns the valid file of every client. Who keeps checkpoints removes old ones."""
        for client, round in self._dirty.items():
            name = f"client-{client}-{round}.safetensors"
            content = save({k: v.cpu().contiguous() for k, v in flatten(self._tree(self._memory[client])).items()})
            write_atomic(self.folder / name, content, named=False)
            old = self._files.get(client)
            self.checksums.pop(old or "", None)
            if self._own and old not in (None, name):
                (self.folder / str(old)).unlink(missing_ok=True)
            self._files[client] = name
            self.checksums[name] = digest(content)
        if self._dirty:
            make_durable(self.folder)
        self._dirty.clear()
        return dict(self._files)

    def restore(self, files: dict[int, str], checksums: Mapping[str, str] = MappingProxyType({})) -> None:
        """Go back to a checkpoint's files."""
        self._memory.clear()
        self._dirty.clear()
        self._files = dict(files)
        self.checksums = {name: checksums.get(f"clients/{name}", "") for name in files.values()}

    def __len__(self) -> int:
        return len(self._memory.keys() | self._files.keys())


def refuse_other_shapes(stored: Mapping[str, Tensor], like: Tree, where: str) -> None:
    """Refuse tensors that are not those that the run needs."""
    for path, leaf in flatten(like).items():
        found = stored.get(path)
        if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
            raise RunError(f"{where}: damaged or of another run ({path} does not fit)")
