"""Who has what: samples of each class at each client, drawn again from a run's configuration."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from undrift.data.federation import Federation
from undrift.experiment.config import Config, read
from undrift.experiment.from_config import data_of, federation_of
from undrift.measure.skew import counts_of, skew_of
from undrift.report.runs import Group, RunRecord

CLASSES = 200
"""Classes shown at most."""
PARTITIONS = 4
"""Different partitions shown at most."""


@dataclass(frozen=True)
class Holdings:
    """What the clients of a federation have."""

    title: str
    names: list[str]
    sizes: NDArray[np.int64]
    counts: NDArray[np.int64] | None
    """[clients, classes]; None where there are no classes."""

    @property
    def skew(self) -> str:
        """How unlike the clients' labels are, in words."""
        if self.counts is None:
            return "no classes to show, so sizes only"
        return f"earth mover's distance {skew_of(self.counts).emd:.2f} (0: all alike, near 1: no class in common)"


def partitions(groups: Sequence[Group]) -> list[RunRecord]:
    """One run for each way in which the data were divided (seeds aside)."""
    different: dict[str, RunRecord] = {}
    for group in groups:
        run = group.runs[0]
        own = {k: v for k, v in run.settings.get("partition", {}).items() if k != "seed"}
        if "data" in run.settings:
            different.setdefault(json.dumps([run.settings["data"], own], sort_keys=True, default=str), run)
    return list(different.values())[:PARTITIONS]


def holdings(run: RunRecord) -> Holdings:
    """The federation of a run; an input error where its data are not here any more."""
    config = read(run.path / "config.toml")
    data = data_of(config)
    made = federation_of(config, data)
    return Holdings(_title(config), _names(config, data.client, len(made)), made.sizes, _counts(made, data.classes))


def _counts(made: Federation, outputs: int) -> NDArray[np.int64] | None:
    """The table [clients, classes]; None where targets are no classes, or too many to be seen."""
    if made.labels is None or not len(made.labels):
        return None
    classes = max(outputs, int(made.labels.max()) + 1)
    return counts_of(made, classes) if classes <= CLASSES and made.labels.min() >= 0 else None


def _title(config: Config) -> str:
    spec = config.partition
    knobs = [(name, getattr(spec, name)) for name in ("alpha", "classes", "shards", "ratio")]
    knob = "".join(f", {name} = {value}" for name, value in knobs if value is not None)
    return f"{config.data.name}, partition {spec.scheme}{knob}"


def _names(config: Config, owners: NDArray[np.generic] | None, clients: int) -> list[str]:
    """The clients' own names where the data give them, else their numbers."""
    if config.partition.scheme == "given" and config.partition.file is None and owners is not None:
        given = [str(name) for name in np.unique(owners)]
        if len(given) == clients:
            return given
    return [str(client) for client in range(clients)]
