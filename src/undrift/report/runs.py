"""Runs found under folders, grouped: those whose configurations differ in nothing but the seed belong together."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undrift.core.files import read_lines, read_object, read_toml
from undrift.errors import ConfigError, UnreadableError
from undrift.experiment.run_folder import dotted, find_runs

SEEDS = ("seed", "partition.seed")


@dataclass(frozen=True)
class RunRecord:
    """What a run has written so far."""

    path: Path
    settings: dict[str, Any]
    records: list[dict[str, Any]]
    conformal: dict[str, Any] | None

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        algorithm = self.settings.get("algorithm", "?")
        return str(algorithm.get("name", "?") if isinstance(algorithm, dict) else algorithm)

    def same(self) -> dict[str, Any]:
        """The settings that runs of one group share."""
        flat = dotted(self.settings)
        if "plan" in flat:  # written by simulate(), which keeps its settings as text
            flat["plan"] = re.sub(r"\bseed=\d+", "", str(flat["plan"]))
        return {k: v for k, v in flat.items() if k not in SEEDS and not k.startswith(("engine.", "measure."))}


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    label: str
    runs: list[RunRecord] = field(default_factory=list)


def find(folders: Sequence[Path]) -> list[Group]:
    """All runs in or below the folders, in groups; refuses folders without any."""
    runs = []
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder")
        runs += [_read(path) for path in find_runs(folder)]
    unique = {run.path.resolve(): run for run in runs if run.records}
    if not unique:
        raise ConfigError(f"{', '.join(map(str, folders))}: no run with an evaluated round there")
    return _grouped(list(unique.values()))


def _read(folder: Path) -> RunRecord:
    try:
        settings = read_toml(folder / "config.toml")
        conformal = folder / "conformal.json"
        sets = read_object(conformal) if conformal.exists() else None
    except UnreadableError as error:
        raise ConfigError(str(error)) from None
    return RunRecord(folder, settings, read_lines(folder / "metrics.jsonl"), sets)


def _grouped(runs: list[RunRecord]) -> list[Group]:
    together: dict[str, list[RunRecord]] = {}
    for run in runs:
        together.setdefault(json.dumps(run.same(), sort_keys=True, default=str), []).append(run)
    members = list(together.values())
    return [Group(_label(own[0], [other[0] for other in members]), own) for own in members]


def _label(run: RunRecord, all_runs: Sequence[RunRecord]) -> str:
    """The algorithm, and what sets this group apart from others of the same algorithm."""
    mine = run.same()
    rivals = [other.same() for other in all_runs if other.algorithm == run.algorithm]
    apart = sorted(key for key in mine if any(other.get(key) != mine[key] for other in rivals))
    return ", ".join([run.algorithm, *(f"{key.rpartition('.')[2]} = {mine[key]}" for key in apart)])
