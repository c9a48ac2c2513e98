"""All pictures that a set of runs gives."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from undrift.errors import InputError
from undrift.experiment.config import read
from undrift.experiment.from_config import data_of, federation_of
from undrift.measure.skew import counts_of
from undrift.report import coverage, curves, partition
from undrift.report.runs import Group, RunRecord, find
from undrift.report.style import save, styled

PARTITIONS = 4
"""Different partitions drawn at most."""


def draw(folders: Sequence[Path], out: Path) -> tuple[list[Path], list[str]]:
    """Draw everything; returns the files and remarks on what could not be drawn."""
    groups = find(folders)
    remarks: list[str] = []
    with styled():
        paths = save(curves.progress(groups), out, "progress")
        for name, figure in (("drift", curves.drift(groups)), ("coverage", coverage.coverage(groups))):
            if figure is not None:
                paths += save(figure, out, name)
        for number, run in enumerate(_partitions(groups)):
            try:
                counts, title = _counts(run)
            except InputError as error:
                remarks.append(f"partition of {run.path}: {error}")
                continue
            paths += save(partition.bubbles(counts, title), out, f"partition{number or ''}")
    return paths, remarks


def _partitions(groups: Sequence[Group]) -> list[RunRecord]:
    """One run for each way in which the data were divided (seeds aside)."""
    different: dict[str, RunRecord] = {}
    for group in groups:
        run = group.runs[0]
        own = {k: v for k, v in run.settings.get("partition", {}).items() if k != "seed"}
        if "data" in run.settings:
            different.setdefault(json.dumps([run.settings["data"], own], sort_keys=True, default=str), run)
    return list(different.values())[:PARTITIONS]


def _counts(run: RunRecord) -> tuple[Any, str]:
    config = read(run.path / "config.toml")
    data = data_of(config)
    spec = config.partition
    knobs = [(name, getattr(spec, name)) for name in ("alpha", "classes", "shards", "ratio")]
    knob = "".join(f", {name} = {value}" for name, value in knobs if value is not None)
    return counts_of(federation_of(config, data), data.classes), f"{config.data.name}, partition {spec.scheme}{knob}"
