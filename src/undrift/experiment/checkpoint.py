"""Checkpoints that cannot lie: every file that one names has a checksum, and so has the file that names them.

``checkpoint/state.json`` is the newest checkpoint, ``checkpoint/previous.json`` the one before; each names the files
that belong to it, how far the records reached, and what the run was made from. A checkpoint is read whole and right,
or not at all: then the one before takes its place.
"""

from __future__ import annotations

import copy
import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from undrift.core.files import (
    digest,
    digest_of_json,
    read_content,
    read_object,
    read_with,
    records_of,
    write_atomic,
    write_json,
)
from undrift.core.tree import Tree, flatten
from undrift.errors import RunError, RunWarning, UnreadableError

State = dict[str, Any]
_FIRST_FORMAT = {"round", "server", "clients", "bytes", "seconds"}
"""What a checkpoint held before there were checksums."""
_FORMAT = _FIRST_FORMAT | {"files", "records", "made_from", "checksum"}
RECORDS = ("metrics.jsonl", "rounds.jsonl")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was verified."""

    state: State
    tensors: dict[str, Tensor]
    records: dict[str, bytes]
    """Each file of records, as far as the checkpoint counts on it."""


class Checkpoints:
    """The last two checkpoints of a run's folder."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.folder = run / "checkpoint"
        self.newest, self.previous = self.folder / "state.json", self.folder / "previous.json"
        self._last: State | None = None

    def save(self, state: State, tensors: Tree) -> None:
        """Write one: its tensors first, then, in one step, the file that makes them valid."""
        name = f"server-{state['round']}.safetensors"
        content = save({path: tensor.detach().cpu().contiguous() for path, tensor in flatten(tensors).items()})
        write_atomic(self.folder / name, content)
        state = copy.deepcopy(state) | {"server": name, "files": {name: digest(content), **state["files"]}}
        state["checksum"] = digest_of_json(state)
        before = self._last if self._last and self._last["round"] != state["round"] else None
        if before is not None:
            write_json(self.previous, before)
        write_json(self.newest, state)
        self._last = state
        if before is not None:
            self._tidy({*_names(before), *_names(state)})

    def load(self, rounds: int) -> Checkpoint | None:
        """The newest checkpoint; if it is damaged the one before, with a warning. None: there is none."""
        wrong: UnreadableError | None = None
        for path in (self.newest, self.previous):
            if not path.exists():
                continue
            try:
                found = self._verified(path, rounds)
            except UnreadableError as error:
                wrong = wrong or error
                continue
            if wrong is not None:
                warnings.warn(f"{wrong}; going on from round {found.state['round']}", RunWarning, stacklevel=2)
            if path != self.newest:
                write_atomic(self.newest, read_content(path))
            return found
        if wrong is not None:
            raise RunError(f"{self.run}: no checkpoint can be used: {wrong}")
        return None

    def newest_round(self) -> int:
        """The round of the newest checkpoint; 0: there is none."""
        return self._round_of(self.newest)

    def safe(self) -> int:
        """The round that this run will not go back behind."""
        return self._round_of(self.previous, self.newest)

    def _round_of(self, *paths: Path) -> int:
        for path in paths:
            try:
                return int(read_object(path)["round"])
            except (UnreadableError, LookupError, TypeError, ValueError):
                continue
        return 0

    def _verified(self, path: Path, rounds: int) -> Checkpoint:
        state = read_with(path, lambda raw: _state(raw, rounds))
        sums = {name: digest(read_content(self.folder / name)) for name in _names(state)}
        if set(state) == _FIRST_FORMAT:
            warnings.warn(f"{path}: from an older version, without checksums", RunWarning, stacklevel=4)
            state = state | {"files": sums, "records": {}, "made_from": {}}
            kept = {name: read_with(self.run / name, lambda raw: _up_to(raw, state["round"])) for name in RECORDS}
        else:
            for name, found in sums.items():
                if state["files"].get(name) != found:
                    raise UnreadableError(f"{self.folder / name}: damaged (its checksum is another)")
            self._last = state
            kept = {name: self._counted_on(name, **known) for name, known in state["records"].items()}
        return Checkpoint(state, read_with(self.folder / state["server"], load), kept)

    def _counted_on(self, name: str, size: int, checksum: str) -> bytes:
        """The beginning of a file of records that a checkpoint counts on."""
        content = read_content(self.run / name)[:size]
        if digest(content) != checksum:
            raise UnreadableError(f"{self.run / name}: {_what_is_wrong(content, size)}")
        return content

    def _tidy(self, named: set[str]) -> None:
        """Remove what no checkpoint names."""
        for path in (*self.folder.glob("server-*.safetensors"), *self.folder.glob("clients/client-*.safetensors")):
            if path.relative_to(self.folder).as_posix() not in named:
                path.unlink(missing_ok=True)


def _names(state: State) -> list[str]:
    return [state["server"], *(f"clients/{name}" for name in state["clients"].values())]


def _state(raw: bytes, rounds: int) -> State:
    """A checkpoint's state; ValueError and its like where it is none."""
    state: State = json.loads(raw)
    if set(state) != _FIRST_FORMAT:
        rest = {key: value for key, value in state.items() if key != "checksum"}
        if set(state) != _FORMAT or state["checksum"] != digest_of_json(rest):
            raise ValueError("its checksum is another")
    if not isinstance(state["round"], int) or not 0 <= state["round"] <= rounds:
        raise ValueError(f"round = {str(state['round'])[:20]}: between 0 and {rounds} is possible")
    for name in (state["server"], *state["clients"].values()):
        if not isinstance(name, str) or "/" in name:
            raise ValueError(f"{str(name)[:40]!r} is no file of a checkpoint")
    if {key: int(value) for key, value in state["bytes"].items()}.keys() != {"bytes_down", "bytes_up"}:
        raise ValueError("bytes: bytes_down and bytes_up are needed")
    return state | {
        "seconds": float(state["seconds"]),
        "clients": {str(int(c)): n for c, n in state["clients"].items()},
    }


def _up_to(raw: bytes, last: int) -> bytes:
    """The records up to a round; those of rounds must not skip any."""
    kept = [record for record in records_of(raw) if record["round"] <= last]
    if kept and "clients" in kept[0] and [record["round"] for record in kept] != list(range(1, last + 1)):
        raise ValueError(f"the records of rounds 1 to {last} are not complete")
    return b"".join(json.dumps(record).encode() + b"\n" for record in kept)


def _what_is_wrong(content: bytes, size: int) -> str:
    if len(content) < size:
        return f"damaged ({len(content)} bytes, the checkpoint counts on {size})"
    try:
        records_of(content)
    except ValueError as error:
        return f"damaged ({error})"
    return "damaged (its checksum is another)"
