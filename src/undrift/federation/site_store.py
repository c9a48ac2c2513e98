"""What a site keeps between rounds (``c_i``, ``h_i``), on its own disk, in two steps.

A round's memory is *staged* before the update is sent: one safetensors file, named after the round. It counts
only from the moment at which a later message of the server names that round as the last one that it accepted;
files of rounds that were never accepted (or that a resumed server has gone back behind) are removed then. Files
that a checkpoint of the server still needs stay.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from undrift.core.files import write_atomic, write_json
from undrift.core.tree import Tree, flatten, unflatten
from undrift.errors import RunError

_RUN = re.compile(r"[0-9a-f]{8,64}")


class SiteStore:
    """A site's memories of one run."""

    def __init__(self, folder: Path, run: str) -> None:
        if not _RUN.fullmatch(run):
            raise RunError(f"run {run[:70]!r}: not a run's name")
        self.folder = folder / run

    def stage(self, round: int, kept: Tree) -> None:
        """Keep a round's memory until the server says whether the round counts."""
        if flat := flatten(kept):
            write_atomic(self._path(round), save({name: leaf.contiguous() for name, leaf in flat.items()}))

    def commit(self, accepted: int, safe: int) -> None:
        """The server accepted round ``accepted`` last, and cannot go back behind what it had after ``safe``."""
        rounds = self.rounds()
        needed = max((round for round in rounds if round <= min(safe, accepted)), default=0)
        for round in rounds:
            if round > accepted or round < needed:
                self._path(round).unlink(missing_ok=True)
        if rounds:
            write_json(self.folder / "committed.json", {"round": accepted})

    def load(self, accepted: int, like: Tree) -> Tree:
        """The memory after round ``accepted`` (0: before the first), checked against what the rule expects."""
        expected = flatten(like)
        if not expected or not accepted:
            return like
        try:
            stored = load_file(self._path(accepted))
        except (OSError, SafetensorError) as error:
            raise RunError(f"this site's memory of round {accepted} cannot be read ({error})") from None
        for name, leaf in expected.items():
            found = stored.get(name)
            if found is None or found.shape != leaf.shape or found.dtype != leaf.dtype:
                raise RunError(f"this site's memory of round {accepted} does not fit the model: {name}")
            if not torch.isfinite(found).all():
                raise RunError(f"this site's memory of round {accepted} holds NaN or infinities: {name}")
        return unflatten({name: stored[name].clone() for name in expected}, like)  # a file's memory may lie anywhere

    def rounds(self) -> list[int]:
        """The rounds whose memory lies on the disk."""
        found = (re.fullmatch(r"round-(\d+)\.safetensors", path.name) for path in self.folder.glob("round-*"))
        return sorted(int(match[1]) for match in found if match)

    def _path(self, round: int) -> Path:
        return self.folder / f"round-{round}.safetensors"
