"""All that a report tells about: runs, diagnoses, reproduced results, and what the clients have."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undrift.errors import ConfigError, UndriftError
from undrift.report.clients import Fairness, fairness
from undrift.report.holdings import Holdings, holdings, partitions
from undrift.report.runs import Group, RunRecord, groups_in


@dataclass(frozen=True)
class Story:
    """What was found in some folders."""

    folders: list[Path]
    groups: list[Group] = field(default_factory=list)
    diagnoses: list[dict[str, Any]] = field(default_factory=list)
    evidence: list[dict[str, Any]] = field(default_factory=list)
    held: list[Holdings] = field(default_factory=list)
    served: list[Fairness | None] = field(default_factory=list)
    """How evenly each group serves the clients."""
    remarks: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        """The names of the folders."""
        return ", ".join(folder.resolve().name or str(folder) for folder in self.folders)

    @property
    def kind(self) -> str:
        """What this is a report of."""
        if self.evidence:
            return "reproduction"
        if self.diagnoses:
            return "diagnosis"
        return "run" if sum(len(group.runs) for group in self.groups) == 1 else "comparison"


def collect(folders: Sequence[Path], hold: Callable[[RunRecord], Holdings] = holdings) -> Story:
    """Read everything in or below the folders; refuses folders in which there is nothing to tell."""
    told = [path for folder in folders for path in sorted(folder.rglob("diagnosis.json"))]
    groups = groups_in(folders, besides=[path.parent / "race" for path in told])
    diagnoses = [_json(path) for path in told]
    evidence = [found for folder in folders for path in sorted(folder.glob("*.json")) if _told(found := _json(path))]
    if not (groups or diagnoses or evidence):
        raise ConfigError(f"{', '.join(map(str, folders))}: no run with an evaluated round, no diagnosis, no results")
    held, remarks = [], []
    for run in partitions(groups):
        try:
            held.append(hold(run))
        except UndriftError as error:
            remarks.append(f"The federation of {run.path} is not shown: {error}")
    served = [fairness(group) for group in groups]
    return Story(list(folders), groups, diagnoses, evidence, held, served, remarks)


def _told(found: Any) -> bool:
    return isinstance(found, dict) and {"recipe", "arms", "metrics"} <= found.keys()


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from None
