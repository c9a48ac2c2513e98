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
from undrift.report.looks import BLUE, Look, looks

SEEDS = ("seed", "partition.seed")


@dataclass(frozen=True)
class RunRecord:
    """What a run has written so far."""

    path: Path
    settings: dict[str, Any]
    records: list[dict[str, Any]]
    conformal: dict[str, Any] | None = None
    rounds: list[dict[str, Any]] = field(default_factory=list)
    """A line for each round (``rounds.jsonl``)."""
    summary: dict[str, Any] | None = None
    """None while the run is under way."""

    @property
    def seed(self) -> int | None:
        """The seed of the training; None where the settings do not say it."""
        found = self.settings.get("seed")
        return found if isinstance(found, int) else None

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
    look: Look = field(default_factory=lambda: Look(BLUE))

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return self.runs[0].algorithm


def find(folders: Sequence[Path]) -> list[Group]:
    """All runs in or below the folders, in groups; refuses folders without any."""
    groups = groups_in(folders)
    if not groups:
        raise ConfigError(f"{', '.join(map(str, folders))}: no run with an evaluated round there")
    return groups


def groups_in(folders: Sequence[Path], besides: Sequence[Path] = ()) -> list[Group]:
    """All runs in or below the folders, in groups; none where no run has an evaluated round.

    ``besides``: folders whose runs are told of otherwise.
    """
    runs = []
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder")
        runs += [read_run(path) for path in find_runs(folder) if not set(besides) & set(path.parents)]
    return _grouped(list({run.path.resolve(): run for run in runs if run.records}.values()))


def read_run(folder: Path) -> RunRecord:
    """What the run in a folder has written so far."""
    try:
        settings = read_toml(folder / "config.toml")
        sets, summary = (_json(folder / name) for name in ("conformal.json", "summary.json"))
        records, rounds = (read_lines(folder / name) for name in ("metrics.jsonl", "rounds.jsonl"))
    except UnreadableError as error:
        raise ConfigError(str(error)) from None
    return RunRecord(folder, settings, records, sets, rounds, summary)


def _json(path: Path) -> Any:
    return read_object(path) if path.exists() else None


def _grouped(runs: list[RunRecord]) -> list[Group]:
    together: dict[str, list[RunRecord]] = {}
    for run in runs:
        together.setdefault(json.dumps(run.same(), sort_keys=True, default=str), []).append(run)
    members = [_once(own) for own in together.values()]
    drawn = looks([own[0].algorithm for own in members])
    firsts = [own[0] for own in members]
    return [Group(_label(own[0], firsts), own, look) for own, look in zip(members, drawn, strict=True)]


def _once(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Every seed once, the run that has come furthest: the same run counted twice would make the spread too small."""
    furthest: dict[str, RunRecord] = {}
    for run in runs:
        flat = dotted(run.settings)
        seed = json.dumps([flat.get(key) for key in SEEDS] + re.findall(r"\bseed=\d+", str(flat.get("plan"))))
        if seed not in furthest or len(run.records) > len(furthest[seed].records):
            furthest[seed] = run
    return list(furthest.values())


def _label(run: RunRecord, all_runs: Sequence[RunRecord]) -> str:
    """The algorithm, and what sets this group apart from others of the same algorithm."""
    mine = run.same()
    rivals = [other.same() for other in all_runs if other.algorithm == run.algorithm]
    apart = sorted(key for key in mine if any(other.get(key) != mine[key] for other in rivals))
    return ", ".join([run.algorithm, *(f"{key.rpartition('.')[2]} = {mine[key]}" for key in apart)])
