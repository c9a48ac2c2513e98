"""The numbers that the page's script draws, small enough for one file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from undrift.report.clients import Fairness
from undrift.report.curves import byte_unit
from undrift.report.holdings import Holdings
from undrift.report.looks import DASHES, MARKERS, Look, looks
from undrift.report.lost import lost_by_round
from undrift.report.numbers import monitor_of
from undrift.report.race import raced
from undrift.report.runs import Group
from undrift.report.series import layer, layers_of, numbers_in, places, plain_name, seconds, sent, spread, values
from undrift.report.story import Story

NUMBERS = 300_000
"""Numbers of all lines together at most: about 2 MB of text."""
POINTS = (20, 1000)
"""Points of a line at least and at most."""
COLUMNS = 120
"""Rounds of a heat map at most."""
CLIENTS = 300
"""Clients of a federation shown at most."""


def chart_data(story: Story) -> dict[str, Any]:
    """Everything that is drawn, as JSON."""
    groups = story.groups
    keys = numbers_in(run for group in groups for run in group.runs)
    points = _points(len(groups), len(keys))
    unit = byte_unit(groups)
    monitored = f"test_{monitor_of(groups).metric}" if groups else ""
    return {
        "monitored": monitored if monitored in keys else next(iter(keys), ""),
        "metrics": [{"key": key, "name": plain_name(key)} for key in keys],
        "unit": unit[1],
        "thinned": any(len(run.records) > points for group in groups for run in group.runs),
        "groups": [
            _group(group, keys, points, unit[0]) | {"clients": _clients(served, points)}
            for group, served in zip(groups, story.served, strict=True)
        ],
        "federations": [_federation(held) for held in story.held],
        "diagnoses": [_diagnosis(found) for found in story.diagnoses],
        "curves": [_evidence(found) for found in story.evidence],
    }


def _points(groups: int, keys: int) -> int:
    least, most = POINTS
    return max(least, min(most, NUMBERS // max(1, groups * (3 + 2 * keys))))


def _group(group: Group, keys: Sequence[str], points: int, unit: float) -> dict[str, Any]:
    shared = set.intersection(*({record["round"] for record in run.records} for run in group.runs))
    rounds = thinned(sorted(shared), points)
    lines = {key: line for key in keys if (line := _line(group, key, rounds)) is not None}
    return {
        "label": group.label,
        "algorithm": group.algorithm,
        "seeds": len(group.runs),
        **_drawn(group.look),
        "round": rounds,
        "sent": [short(value / unit) for value in places(group, rounds, sent)],
        "seconds": [short(value) for value in places(group, rounds, seconds)],
        "lines": lines,
        "drift": _drift(group),
        "lost": lost_by_round(group),
        "coverage": _coverage(group),
    }


def _drawn(look: Look) -> dict[str, str]:
    return {
        "colour": look.colour,
        "dark": look.on_dark,
        "dash": ",".join(f"{2 * length:g}px" for length in DASHES[look.dash]) or "solid",
        "symbol": MARKERS[look.marker][1],
    }


def _line(group: Group, key: str, rounds: Sequence[int]) -> dict[str, Any] | None:
    """Mean and deviation at some rounds, null where there is no value."""
    at, mean, deviation = spread(group, values(key))
    if not at:
        return None
    place = {round: number for number, round in enumerate(at)}
    found = [place.get(round) for round in rounds]
    line: dict[str, Any] = {"mean": [None if i is None else short(mean[i]) for i in found]}
    if deviation.any():
        line["sd"] = [None if i is None else short(deviation[i]) for i in found]
    return line


def thinned(rounds: Sequence[int], points: int) -> list[int]:
    """At most so many of the rounds, evenly spread, the first and the last among them."""
    if len(rounds) <= points:
        return list(rounds)
    return [rounds[i] for i in np.unique(np.linspace(0, len(rounds) - 1, points).round().astype(int))]


def short(value: float) -> float | None:
    """Five significant digits; null for what JSON has no number for."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _drift(group: Group) -> dict[str, Any] | None:
    names = layers_of(group)
    if not names:
        return None
    found = {name: spread(group, layer(name)) for name in names}
    rounds = thinned(sorted(set().union(*(at for at, _, _ in found.values()))), COLUMNS)
    rows = []
    for at, mean, _ in found.values():
        by_round = dict(zip(at, mean, strict=True))
        rows.append([short(by_round[r]) if r in by_round else None for r in rounds])
    return {"layers": names, "round": rounds, "values": rows}


def _clients(found: Fairness | None, points: int) -> dict[str, Any] | None:
    if found is None:
        return None
    rounds = thinned(sorted(found.over_rounds), points)
    columns = zip(*(found.over_rounds[round] for round in rounds), strict=True)
    lines = dict(zip(("mean", "low", "high", "worst"), ([short(v) for v in column] for column in columns), strict=True))
    return {"round": rounds, **lines, "metric": found.metric, "last": [short(value) for value in found.last[:CLIENTS]]}


def _coverage(group: Group) -> list[list[float | None]]:
    """(set size, coverage) of the first run that has prediction sets."""
    sets = next((run.conformal for run in group.runs if run.conformal), None)
    return [[short(point["size"]), short(point["coverage"])] for point in sets["curve"]] if sets else []


def _federation(held: Holdings) -> dict[str, Any]:
    names = held.names[:CLIENTS]
    return {
        "names": names,
        "sizes": held.sizes[:CLIENTS].tolist(),
        "counts": None if held.counts is None else held.counts[:CLIENTS].T.tolist(),
    }


def _diagnosis(found: dict[str, Any]) -> dict[str, Any]:
    layers = found.get("findings", {}).get("layers", {})
    costs = {name: (cost["down"] + cost["up"]) / 1e6 for name, cost in found.get("bytes_a_round", {}).items()}
    race = [
        {
            "label": label,
            **_drawn(look),
            "round": [at for at, _ in curve],
            "value": [short(value) for _, value in curve],
        }
        for label, curve, look in raced(found)
    ]
    drifting, metric = found.get("drifting_layers", []), found.get("metric", "")
    return {"layers": layers, "costs": costs, "drifting": drifting, "race": race, "metric": metric}


def _evidence(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Accuracy over rounds of the runs behind reproduced numbers: the mean over seeds."""
    arms = [arm for arm in found["arms"] if any(run.get("curve") for run in arm.get("runs", ()))]
    drawn = looks([str(arm.get("algorithm", "")) for arm in arms])
    return [_arm(arm, look) for arm, look in zip(arms, drawn, strict=True)]


def _arm(arm: dict[str, Any], look: Look) -> dict[str, Any]:
    curves = [{point[0]: point[1] for point in run["curve"]} for run in arm["runs"] if run.get("curve")]
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    label = f"{arm['group']}: {arm['label']}" if arm.get("group") else arm["label"]
    means = [float(np.mean([curve[r] for curve in curves])) for r in rounds]
    return {"label": label, **_drawn(look), "round": rounds, "value": [short(mean) for mean in means]}
