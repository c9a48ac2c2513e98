"""A small picture of a result: accuracy over rounds, a panel for each group, drawn from the curves in its JSON file."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from undrift.core.files import write_atomic
from undrift.report.looks import Look, looks
from undrift.report.style import legend_below, line, styled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 3.6, 2.6
COLUMNS = 3
DPI = 80
ROUND, RAW, ROLLING = 0, 1, 3
"""Places in a point of a curve; results from before rolling accuracy was kept have no fourth."""


def write_picture(evidence: Mapping[str, Any], path: Path) -> bool:
    """Draw a result; False where there is no run to draw."""
    lines = [_drawable(arm) for arm in evidence["arms"] if arm["runs"] or arm.get("under_way")]
    if not lines:
        return False
    with styled():
        buffer = io.BytesIO()
        picture({**evidence, "arms": lines}).savefig(buffer, dpi=DPI, bbox_inches="tight", metadata={"Software": None})
    if not path.exists() or path.read_bytes() != buffer.getvalue():
        write_atomic(path, buffer.getvalue())
    return True


def _drawable(arm: Mapping[str, Any]) -> Mapping[str, Any]:
    """A line as it is; where none of its runs has ended, with those under way."""
    return arm if arm["runs"] else {**arm, "runs": arm["under_way"], "label": f"{arm['label']} (so far)"}


def picture(evidence: Mapping[str, Any]) -> Figure:
    """The figure itself, of lines that all have a run."""
    from matplotlib.figure import Figure

    lines = evidence["arms"]
    groups = list(dict.fromkeys(arm["group"] for arm in lines))
    algorithms = {arm["label"]: arm["algorithm"] for arm in reversed(lines)}
    labels = list(dict.fromkeys(arm["label"] for arm in lines))
    drawn = dict(zip(labels, looks([algorithms[label] for label in labels]), strict=True))
    columns = min(COLUMNS, len(groups))
    rows = -(-len(groups) // columns)
    alone = len(groups) == 1
    size = (WIDTH * columns, HEIGHT * rows + 0.4)
    figure = Figure(figsize=(6.4, 3.6) if alone else size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True)
    smooth = _smooth(evidence)
    for place, group in zip(axes.flat, groups, strict=False):
        own = [arm for arm in lines if arm["group"] == group]
        for arm in own:
            _draw(place, arm, drawn[arm["label"]], smooth)
        place.set_title(group, fontsize=9)
        place.set(xlabel="round")
        place.margins(x=0.02)
        place.xaxis.get_major_locator().set_params(integer=True)
    for place in axes.flat[len(groups) :]:
        place.set_visible(False)
    for row in axes:
        row[0].set_ylabel("test accuracy (rolling)" if smooth else "test accuracy")
    figure.suptitle(_title(evidence), fontsize=9, x=0.01, ha="left")
    legend_below(figure, _all(axes.flat[0], drawn))
    return figure


def _draw(axes: Any, arm: Mapping[str, Any], look: Look, smooth: bool) -> None:
    """Mean and standard deviation over the seeds."""
    curves = [run["curve"] for run in arm["runs"]]
    shared = sorted(set.intersection(*({point[ROUND] for point in curve} for curve in curves)))
    table = np.array(
        [[point[ROLLING if smooth else RAW] for point in curve if point[ROUND] in set(shared)] for curve in curves]
    )
    mean = table.mean(axis=0)
    style = line(look, len(shared))
    axes.plot(shared, mean, label=arm["label"], **{**style, "markersize": 3.5, "linewidth": 1.2})
    if len(curves) > 1:
        deviation = table.std(axis=0, ddof=1)
        axes.fill_between(shared, mean - deviation, mean + deviation, color=style["color"], alpha=0.15, linewidth=0)


def _smooth(evidence: Mapping[str, Any]) -> bool:
    """Whether the result is about rolling accuracy, and has it."""
    curves = [run["curve"] for arm in evidence["arms"] for run in arm["runs"]]
    asked = any(metric.startswith(("rolling", "rounds_to:")) for metric in evidence["metrics"])
    return asked and all(len(curve[0]) > ROLLING for curve in curves)


def _all(axes: Any, drawn: Mapping[str, Look]) -> Any:
    """A panel that knows every label, for the legend."""
    there = set(axes.get_legend_handles_labels()[1])
    for label, look in drawn.items():
        if label not in there:
            axes.plot([], [], label=label, **line(look, 1))
    return axes


def _title(evidence: Mapping[str, Any]) -> str:
    size = ""
    if evidence["scaled"]:
        size = f", size {evidence['size']}" if evidence.get("size") else f", scaled by {evidence['scale']:g}"
    seeds = sorted({len(arm["runs"]) for arm in evidence["arms"] if arm["runs"]})
    shown = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]}-{seeds[-1]}"
    stand_in = ", MADE-UP DATA" if evidence["stand_in"] else ""
    return f"{evidence['paper']}, {evidence['where']}{size}{stand_in} ({shown} seed{'s' * (shown != '1')})"
