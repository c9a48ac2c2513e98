"""How evenly clients are served: the spread of a metric over clients, and the clients served worst."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from undrift.report.runs import Group, RunRecord
from undrift.rounds.progress import Monitor

Served = tuple[float, float, float, float]
"""Mean over clients, 10 % and 90 % quantiles, the worst client."""
WORST = 5


@dataclass(frozen=True)
class Fairness:
    """Over rounds: the mean over seeds. At the end: each client of the first run that says it."""

    metric: str
    over_rounds: dict[int, Served]
    last: list[float] = field(default_factory=list)
    worst: list[tuple[int, float]] = field(default_factory=list)
    """The worst clients of the last evaluation of the first run, from the worst."""


def fairness(group: Group) -> Fairness | None:
    """What the runs of a group say about single clients; None where they say nothing."""
    found = [(run, served) for run in group.runs if (served := _over_rounds(run))]
    if not found:
        return None
    rounds = sorted(set.intersection(*(set(served) for _, served in found)))
    means = {r: np.mean([served[r] for _, served in found], axis=0) for r in rounds}
    run = found[0][0]
    last: list[float] = next((r["clients"]["each"] for r in reversed(run.records) if _has_each(r)), [])
    return Fairness(
        _metric(run),
        {r: (float(m[0]), float(m[1]), float(m[2]), float(m[3])) for r, m in means.items()},
        last,
        _worst(run, last),
    )


def _over_rounds(run: RunRecord) -> dict[int, Served]:
    key = f"clients_{_metric(run)}"
    names = (key, f"{key}_p10", f"{key}_p90", f"{key}_worst")
    own = [record for record in run.records if all(record.get(name) is not None for name in names)]
    if own:  # clients with test data of their own
        rows = np.array([[record[name] for name in names] for record in own])
    else:  # accuracy on what clients train on
        own = [record for record in run.records if _has_each(record)]
        each = np.array([record["clients"]["each"] for record in own], dtype=float)
        if not len(own):
            return {}
        rows = np.column_stack([each.mean(axis=1), *np.quantile(each, (0.1, 0.9), axis=1), each.min(axis=1)])
    return {record["round"]: (row[0], row[1], row[2], row[3]) for record, row in zip(own, rows.tolist(), strict=True)}


def _has_each(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("clients"), Mapping) and bool(record["clients"].get("each"))


def _metric(run: RunRecord) -> str:
    """The metric that is counted for single clients."""
    ending = "_worst"
    keys = (key for record in run.records[:1] for key in record if key.startswith("clients_") and key.endswith(ending))
    found = next((key for key in keys if key != f"clients{ending}"), None)
    return found.removeprefix("clients_").removesuffix(ending) if found else "accuracy"


def _worst(run: RunRecord, last: list[float]) -> list[tuple[int, float]]:
    if last:
        order = sorted(range(len(last)), key=lambda client: last[client])
        if Monitor.of(_metric(run)).less:
            order.reverse()
        return [(client, last[client]) for client in order[:WORST]]
    key = f"clients_{_metric(run)}_worst"
    record = next((r for r in reversed(run.records) if r.get("clients_worst") is not None and key in r), None)
    return [(int(record["clients_worst"]), float(record[key]))] if record else []
