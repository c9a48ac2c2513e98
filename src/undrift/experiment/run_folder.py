"""The output folder of a run: configuration, records, summary, model and checkpoints."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import tomli_w
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from undrift.core.files import finite, read_lines, unfinished, write_atomic, write_json
from undrift.core.tree import flatten
from undrift.errors import ConfigError, RunError

Settings = dict[str, Any]


class RunFolder:
    """Where a run writes; refuses to write over another run. Nothing is written before :meth:`begin`."""

    def __init__(self, path: Path, settings: Settings, *, resume: bool) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.states = self.checkpoints / "clients"
        held = (path / "config.toml").exists()
        if held and not resume:
            raise ConfigError(
                f"output folder {path} holds another run; give another --out, or --resume to go on with it"
            )
        if path.exists() and not path.is_dir():
            raise ConfigError(f"output folder {path} is a file")
        if path.exists() and not held and any(not unfinished(item) for item in path.iterdir()):
            raise ConfigError(f"output folder {path} is not empty and holds no run; give another --out")
        if resume and not held:
            raise ConfigError(f"output folder {path} holds no run to resume")
        self._settings = tomli_w.dumps(settings)
        if held:
            _refuse_other(path, settings)

    def begin(self) -> None:
        """Say whose folder this is, before anything else is written to it."""
        for item in filter(unfinished, self.path.rglob(".*")):
            item.unlink()
        if not (self.path / "config.toml").exists():
            try:
                write_atomic(self.path / "config.toml", self._settings)
            except OSError as error:
                raise ConfigError(f"output folder {self.path}: {error.strerror}") from None

    def save(self, round: int, tensors: dict[str, Any], extra: dict[str, Any]) -> None:
        """A checkpoint: tensors first, then, in one step, the file that makes them valid."""
        name = f"server-{round}.safetensors"
        flat = {path: tensor.detach().cpu().contiguous() for path, tensor in flatten(tensors).items()}
        write_atomic(self.checkpoints / name, save(flat))
        write_json(self.checkpoints / "state.json", {"round": round, "server": name, **extra})
        for old in self.checkpoints.glob("server-*.safetensors"):
            if old.name != name:
                old.unlink()

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the summary, which marks the run as finished."""
        write_json(self.path / "summary.json", summary)

    def load(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """The last checkpoint, if there is one."""
        path = self.checkpoints / "state.json"
        if not path.exists():
            return None
        try:
            state = json.loads(path.read_text())
            return state, load_file(self.checkpoints / state["server"])
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise RunError(f"checkpoint in {self.path} cannot be read: {error}") from None

    def records(self, name: str, last: int) -> list[dict[str, Any]]:
        """The records of ``name`` up to round ``last``; what an interrupted run wrote after it is dropped."""
        path = self.path / name
        kept = [record for record in read_lines(path) if record["round"] <= last]
        write_atomic(path, "".join(json.dumps(record) + "\n" for record in kept))
        return kept

    def append(self, name: str, record: dict[str, Any]) -> None:
        """Add a record to a JSON-lines file."""
        with open(self.path / name, "a") as file:
            file.write(json.dumps(finite(record), allow_nan=False) + "\n")


def _refuse_other(path: Path, settings: Settings) -> None:
    def fixed(all_settings: Settings) -> dict[str, Any]:
        flat = dotted(all_settings)
        # Engine and place change nothing about the result, so they may change on the way.
        return {key: value for key, value in flat.items() if not key.startswith("engine.") or key == "engine.precision"}

    stored, given = fixed(tomllib.loads((path / "config.toml").read_text())), fixed(settings)
    for key in sorted(stored.keys() | given.keys()):
        if stored.get(key) != given.get(key):
            raise ConfigError(
                f"output folder {path} holds another run: {key} is {stored.get(key, 'absent')!r} there "
                f"and {given.get(key, 'absent')!r} here"
            )


def dotted(settings: Settings, prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= dotted(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
