"""All pictures that a set of runs gives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from undrift.errors import InputError
from undrift.report import coverage, curves, partition
from undrift.report.holdings import holdings, partitions
from undrift.report.runs import find
from undrift.report.style import save, styled


def draw(folders: Sequence[Path], out: Path, note: str = "") -> tuple[list[Path], list[str]]:
    """Draw everything; returns the files and remarks on what could not be drawn. A note stands in every picture."""
    groups = find(folders)
    remarks: list[str] = []
    with styled():
        paths = save(curves.progress(groups), out, "progress", note)
        for name, figure in (("drift", curves.drift(groups)), ("coverage", coverage.coverage(groups))):
            if figure is not None:
                paths += save(figure, out, name, note)
        for number, run in enumerate(partitions(groups)):
            try:
                held = holdings(run)
            except InputError as error:
                remarks.append(f"partition of {run.path}: {error}")
                continue
            paths += save(partition.picture(held), out, f"partition{number or ''}", note)
    return paths, remarks
