"""The output folder of a run: configuration, records, summary, model and checkpoints; one process writes to it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tomli_w
from torch import Tensor

from undrift.core.files import (
    digest,
    digest_of_json,
    finite,
    make_durable,
    read_content,
    read_object,
    read_toml,
    records_of,
    unfinished,
    write_atomic,
    write_json,
)
from undrift.core.lock import FolderLock
from undrift.errors import ConfigError, InputError, RunError, RunWarning, UnreadableError
from undrift.experiment.checkpoint import Checkpoints
from undrift.rounds.made_from import CHANGES, difference

Settings = dict[str, Any]
_MARK = "# checksum of what follows: "
_SUMMED_UP = {"final_accuracy", "rolling_accuracy", "rise_time", "rounds_to", "bytes_down", "bytes_up", "seconds"}
_ROUNDS = "train.rounds"
_SEARCHED = 20_000
"""Folders that are looked into for runs."""


class RunFolder:
    """Where a run writes; refuses to write over another run. Nothing is written before :meth:`begin`."""

    def __init__(self, path: Path, settings: Settings, *, resume: bool, accept: Collection[str] = ()) -> None:
        self.path, self.settings, self.resume, self.accept = path, settings, resume, frozenset(accept)
        self.checkpoints = Checkpoints(path)
        self.states = self.checkpoints.folder / "clients"
        self._lock, self._new = FolderLock(), False
        self._made_from: dict[str, str] = {}
        self._tails: dict[str, _Tail] = {}
        self._verified: dict[str, bytes] = {}
        self._check()

    def _check(self) -> None:
        """Refuse a folder that this run must not write to."""
        path, held = self.path, (self.path / "config.toml").exists()
        check_output(path)
        if held and not self.resume:
            raise ConfigError(
                f"output folder {path} holds another run; give another --out, or --resume to go on with it"
            )
        if path.exists() and not held and any(not unfinished(item) for item in path.iterdir()):
            raise ConfigError(f"output folder {path} is not empty and holds no run; give another --out")
        if self.resume and not held:
            raise ConfigError(f"output folder {path} holds no run to resume")
        if held:
            _refuse_other(path, self.settings)

    def begin(self, made_from: Mapping[str, str] = MappingProxyType({})) -> None:
        """Make the folder ours and say whose it is, before anything else is written to it."""
        self._made_from = dict(made_from)
        self.path.mkdir(parents=True, exist_ok=True)
        if not self._lock.take(self.path):
            raise ConfigError(
                f"output folder {self.path}: a run is under way there; wait for it, or give another --out"
            )
        self._check()  # another run may have come and gone since the first look
        for item in filter(unfinished, self.path.rglob(".*")):
            item.unlink(missing_ok=True)
        config = self.path / "config.toml"
        self._new = not config.exists()
        if config.exists() and not _goes_further(_stored(config), self.settings):
            return
        (self.path / "summary.json").unlink(missing_ok=True)  # a run that goes further is no longer finished
        text = tomli_w.dumps(self.settings)
        write_atomic(config, f"{_MARK}{digest(text.encode())}\n{text}")

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, *rest: object) -> None:
        """Let others write; a new run whose input turned out to be wrong must not block the next one."""
        if self._new and isinstance(error, InputError) and not self.checkpoints.newest.exists():
            for item in self.path.iterdir():
                shutil.rmtree(item) if item.is_dir() else item.unlink()
        self._lock.release()

    def save(
        self,
        round: int,
        tensors: dict[str, Any],
        extra: dict[str, Any],
        files: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """A checkpoint; the records that it counts on are durable before it is. ``files``: clients', with checksums."""
        for name in self._tails:
            make_durable(self.path / name)
        state = {
            "round": round,
            **extra,
            "files": {f"clients/{name}": checksum for name, checksum in files.items()},
            "records": {name: tail.known() for name, tail in self._tails.items()},
            "made_from": self._made_from,
        }
        self.checkpoints.save(state, tensors)

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary, which marks the run as finished, with checksums of what it sums up."""
        names = ("config.toml", "metrics.jsonl", "rounds.jsonl", "model.safetensors")
        sums = {name: digest(read_content(self.path / name)) for name in names}
        write_json(self.path / "summary.json", summary | {"checksums": sums | {"summary": digest_of_json(summary)}})

    def load(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """The last checkpoint that is whole, if there is one; what the run was made from must be the same."""
        found = self.checkpoints.load(int(self.settings.get("train", {}).get("rounds", 1 << 31)))
        if found is None:
            return None
        self._refuse_changes(found.state.get("made_from", {}))
        self._verified = found.records
        return found.state, found.tensors

    def _refuse_changes(self, before: Mapping[str, str]) -> None:
        for kind in CHANGES:
            changed = difference(before, self._made_from, kind)
            if changed and kind in self.accept:
                warnings.warn(f"{self.path}: going on with other {kind}: {changed}", RunWarning, stacklevel=2)
            elif changed:
                raise ConfigError(
                    f"output folder {self.path}: {changed}; the result would be another one. "
                    f"`undrift run … --resume --accept-changed-{kind}` goes on nevertheless"
                )

    def records(self, name: str, last: int, keep: Callable[[int], bool]) -> list[dict[str, Any]]:
        """The records that the checkpoint counts on; what an interrupted run wrote after it is dropped.

        Of these, the records of rounds that ``keep`` is true of.
        """
        content = self._verified.get(name, b"")
        lines = content.splitlines(keepends=True)
        kept = [keep(record["round"]) for record in records_of(content)]
        content = b"".join(line for line, stays in zip(lines, kept, strict=True) if stays)
        write_atomic(self.path / name, content)
        self._tails[name] = _Tail(content)
        found = records_of(content)
        if found and found[-1]["round"] > last:
            raise RunError(f"{self.path / name}: damaged (a record of round {found[-1]['round']}, {last} is the last)")
        return found

    def append(self, name: str, record: dict[str, Any]) -> None:
        """Add a record to a JSON-lines file."""
        line = (json.dumps(finite(record), allow_nan=False) + "\n").encode()
        with open(self.path / name, "ab") as file:
            file.write(line)
        self._tails.setdefault(name, _Tail()).add(line)


class _Tail:
    """How long a file of records is, and its checksum, kept up to date line by line."""

    def __init__(self, content: bytes = b"") -> None:
        self.size, self._sum = len(content), hashlib.blake2b(content, digest_size=16)

    def add(self, line: bytes) -> None:
        self.size += len(line)
        self._sum.update(line)

    def known(self) -> dict[str, Any]:
        return {"size": self.size, "checksum": self._sum.hexdigest()}


def check_output(path: Path) -> None:
    """Refuse a place at which no folder can be: asked before work begins."""
    if "\0" in str(path):
        raise ConfigError(f"output folder {str(path)[:60]!r}: not a path")
    try:
        if path.exists() and not path.is_dir():
            raise ConfigError(f"output folder {path} is a file")
        above = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    except OSError as error:
        raise ConfigError(f"output folder {str(path)[:60]}: {error.strerror}") from None
    if not above.is_dir():
        raise ConfigError(f"output folder {path}: {above} is a file")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"output folder {path}: {above} cannot be written to")


def stored_precision(path: Path) -> Any:
    """The precision of the run that a folder holds: who asks for the faster one goes on with it. None: no run there."""
    config = path / "config.toml"
    stored = _stored(config) if config.exists() else {}
    return next(
        (stored[name]["precision"] for name in ("engine", "train") if "precision" in stored.get(name, {})), None
    )


def _refuse_other(path: Path, settings: Settings) -> None:
    def fixed(all_settings: Settings) -> dict[str, Any]:
        flat = dotted(all_settings)
        # Engine and place change nothing about the result, so they may change on the way.
        return {key: value for key, value in flat.items() if not key.startswith("engine.") or key == "engine.precision"}

    before = _stored(path / "config.toml")
    stored, given = fixed(before), fixed(settings)
    if _goes_further(before, settings):
        del stored[_ROUNDS], given[_ROUNDS]
    for key in sorted(stored.keys() | given.keys()):
        if stored.get(key) != given.get(key):
            raise ConfigError(
                f"output folder {path} holds another run: {key} is {stored.get(key, 'absent')!r} there "
                f"and {given.get(key, 'absent')!r} here"
            )


def _goes_further(before: Settings, now: Settings) -> bool:
    """Whether only more rounds are asked for; under a cosine schedule they would change the rounds that were made."""
    old, new = (settings.get("train", {}) for settings in (before, now))
    return new.get("schedule") != "cosine" and int(new.get("rounds", 0)) > int(old.get("rounds", 1 << 62))


def _stored(path: Path) -> Settings:
    """The configuration in a run's folder, which nobody has changed since (older ones have no checksum)."""
    first, _, rest = read_content(path).partition(b"\n")
    if first.startswith(_MARK.encode()) and first != f"{_MARK}{digest(rest)}".encode():
        raise ConfigError(f"{path}: damaged or edited (its checksum is another)")
    return read_toml(path)


def dotted(settings: Settings, prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= dotted(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished run, with which the folder's other files agree."""
    path = folder / "summary.json"
    summary = read_object(path)
    if missing := sorted(_SUMMED_UP - summary.keys()):
        raise UnreadableError(f"{path}: damaged (no {missing[0]} in it)")
    sums = summary.pop("checksums", None)
    if sums is None:  # from before there were any
        return summary
    if not isinstance(sums, dict) or sums.pop("summary", None) != digest_of_json(summary):
        raise UnreadableError(f"{path}: damaged (its checksum is another)")
    for name, known in sums.items():
        if digest(read_content(folder / name)) != known:
            raise UnreadableError(f"{folder / name}: damaged or of another run (summary.json knows another checksum)")
    return summary


def find_runs(folder: Path) -> list[Path]:
    """The folders of runs in or below a folder; refuses to search a whole machine for them."""
    found = list[Path]()
    for seen, (place, below, names) in enumerate(os.walk(folder)):
        if seen >= _SEARCHED:
            raise ConfigError(f"{folder}: more than {_SEARCHED} folders; name one nearer to the runs")
        if "config.toml" in names:
            found.append(Path(place))
            below.clear()
        below[:] = sorted(name for name in below if not name.startswith("."))
    return sorted(found)
