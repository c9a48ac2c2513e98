"""The race of a diagnosis as a picture: what validation data said of every candidate, round by round."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from undrift.report.looks import Look, looks
from undrift.report.style import legend_below, line, save, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Raced = tuple[str, list[list[float]], Look]
"""A candidate's label, its (round, value) pairs, and how it is drawn."""


def raced(found: dict[str, Any]) -> list[Raced]:
    """The candidates of a diagnosis that have a curve, the best first."""
    with_curve = [one for one in found.get("race") or [] if one.get("curve")]
    drawn = looks([str(one.get("algorithm", "")) for one in with_curve])
    labels = [f"{one.get('label')}, lr {one.get('lr'):g}" for one in with_curve]
    return [(label, one["curve"], look) for label, one, look in zip(labels, with_curve, drawn, strict=True)]


def write_race(found: dict[str, Any], out: Path) -> list[Path]:
    """``race.png`` and ``race.svg``; none where nothing was raced."""
    lines = raced(found)
    if not lines:
        return []
    with styled():
        return save(_figure(lines, found), out, "race")


def _figure(lines: list[Raced], found: dict[str, Any]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = figure.subplots()
    for label, curve, look in lines:
        axes.plot([point[0] for point in curve], [point[1] for point in curve], label=label, **line(look, len(curve)))
    hope, rounds = found.get("expected") or {}, (found.get("expected") or {}).get("rounds")
    if rounds and None not in (hope.get("value"), hope.get("low"), hope.get("high")):
        low, value, high = (hope[key] for key in ("low", "value", "high"))
        around = [[max(value - low, 0.0)], [max(high - value, 0.0)]]
        axes.errorbar(
            [rounds], [value], yerr=around, fmt="D", color=lines[0][2].colour, capsize=4, label="expected of the best"
        )
    axes.set(xlabel="round", ylabel=f"{found.get('metric', '')} on validation data")
    axes.set_xlim(left=0)
    axes.locator_params(axis="x", integer=True)
    legend_below(figure, axes, columns=3)
    return figure
