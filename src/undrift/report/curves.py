"""Metrics against rounds and against bytes, and drift diversity by layer: means and bands over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from undrift.report.looks import numbered
from undrift.report.numbers import monitor_of
from undrift.report.runs import Group
from undrift.report.series import layer, layers_of, places, plain_name, sent, spread, values
from undrift.report.style import legend_below, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = 9
UNITS = ((1e3, "GB"), (1.0, "MB"), (1e-3, "kB"), (1e-6, "bytes"))
"""Megabytes in a unit, from the largest."""


def progress(groups: Sequence[Group]) -> Figure:
    """A row for the monitored metric and one for the loss: against rounds and against what was sent."""
    from matplotlib.figure import Figure

    keys = list(dict.fromkeys([f"test_{monitor_of(groups).metric}", "test_loss"]))
    keys = [key for key in keys if any(spread(group, values(key))[0] for group in groups)] or ["train_loss"]
    figure = Figure(figsize=(10, 0.6 + 3.0 * len(keys)), layout="constrained")
    axes = figure.subplots(len(keys), 2, sharey="row", squeeze=False)
    size, unit = byte_unit(groups)
    for row, key in enumerate(keys):
        for column, (scale, where) in enumerate(((None, "round"), (size, f"sent, both ways ({unit})"))):
            _panel(axes[row][column], groups, key, scale)
            axes[row][column].set(xlabel=where, ylabel=plain_name(key) if column == 0 else "")
        if key.endswith("_loss"):
            _log_if_wide(axes[row][0], groups, key)
    axes[0][0].set_title(_seeds(groups))
    legend_below(figure, axes[0][0])
    return figure


def byte_unit(groups: Sequence[Group]) -> tuple[float, str]:
    """A unit in which what was sent reads as people write numbers: megabytes in it, and its name."""
    most = max((max(sent(run).values(), default=0.0) for group in groups for run in group.runs), default=0.0)
    return next(((size, name) for size, name in UNITS if most >= size), UNITS[1])


def _panel(axes: Any, groups: Sequence[Group], key: str, unit: float | None) -> None:
    band = 0.18 if len(groups) <= 4 else 0.10
    for group in groups:
        rounds, mean, deviation = spread(group, values(key))
        if not rounds:
            continue
        at = rounds if unit is None else places(group, rounds, sent) / unit
        style = line(group.look, len(rounds))
        axes.plot(at, mean, label=group.label, **style)
        if deviation.any():
            axes.fill_between(at, mean - deviation, mean + deviation, color=style["color"], alpha=band, linewidth=0)
    axes.set_xlim(left=0)
    if unit is None:
        axes.xaxis.get_major_locator().set_params(integer=True)


def _log_if_wide(axes: Any, groups: Sequence[Group], key: str) -> None:
    """A loss that spans more than a factor of 20 reads better on a logarithmic axis."""
    means = [mean for mean in (spread(group, values(key))[1] for group in groups) if len(mean)]
    low, high = min(map(np.min, means), default=1.0), max(map(np.max, means), default=1.0)
    if low > 0 and high / low > 20:
        _plain_log(axes)


def _seeds(groups: Sequence[Group]) -> str:
    counts = sorted({len(group.runs) for group in groups})
    if counts == [1]:
        return ""
    shown = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"mean ± standard deviation over {shown} seeds"


def drift(groups: Sequence[Group]) -> Figure | None:
    """Drift diversity of each layer over the rounds, one panel for each group that measured it."""
    measured = [group for group in groups if layers_of(group)][:PANELS]
    if not measured:
        return None
    from matplotlib.figure import Figure

    columns = min(3, len(measured))
    rows = -(-len(measured) // columns)
    figure = Figure(figsize=(1.5 + 3.6 * columns, 0.8 + 2.9 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for number, (panel, group) in enumerate(zip(axes.flat, measured, strict=False)):
        _layers(panel, group)
        panel.tick_params(labelbottom=number + columns >= len(measured))  # the last panel of its column
    for panel in axes.flat[len(measured) :]:
        panel.set_visible(False)
    figure.supxlabel("round", fontsize=10)
    figure.supylabel("drift diversity (1/S: equal updates, 1: orthogonal)", fontsize=10)
    legend_below(figure, axes[0][0])
    return figure


def _layers(axes: Any, group: Group) -> None:
    for number, name in enumerate(layers_of(group)):
        rounds, mean, deviation = spread(group, layer(name))
        style = line(numbered(number), len(rounds))
        axes.plot(rounds, mean, label=name, **style)
        if deviation.any():
            low = np.maximum(mean - deviation, mean / 10)
            axes.fill_between(rounds, low, mean + deviation, color=style["color"], alpha=0.15, linewidth=0)
    _plain_log(axes)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_title(group.label)


def _plain_log(axes: Any) -> None:
    """A logarithmic axis with numbers as people write them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
