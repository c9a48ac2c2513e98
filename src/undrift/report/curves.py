"""Accuracy and loss against rounds and against bytes, and drift diversity by layer: means and bands over seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from undrift.report.runs import Group, RunRecord
from undrift.report.style import legend_below, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
Value = Callable[[RunRecord], dict[int, float]]
"""A run's values by round."""
MEGABYTE = 1e6
PANELS = 9


def values(key: str) -> Value:
    """A number that stands in the records under ``key``."""
    return lambda run: {r["round"]: float(r[key]) for r in run.records if r.get(key) is not None}


def sent(run: RunRecord) -> dict[int, float]:
    """Megabytes sent up to each evaluated round; rounds that were not evaluated count like the next that was."""
    total, last, so_far = 0.0, 0, {}
    for record in run.records:
        gap = record["round"] - last
        total += gap * (record["bytes_down"] + record["bytes_up"]) / MEGABYTE
        last = record["round"]
        so_far[last] = total
    return so_far


def spread(group: Group, value: Value) -> tuple[list[int], Floats, Floats]:
    """Rounds that all runs of a group have come to, with mean and standard deviation there."""
    each = [found for found in (value(run) for run in group.runs) if found]
    rounds = sorted(set.intersection(*(set(found) for found in each))) if each else []
    table = np.array([[found[r] for r in rounds] for found in each], dtype=float).reshape(len(each), len(rounds))
    deviation = table.std(axis=0, ddof=1) if len(each) > 1 else np.zeros(len(rounds))
    return rounds, table.mean(axis=0) if each else np.empty(0), deviation


def progress(groups: Sequence[Group]) -> Figure:
    """Four panels: accuracy and loss, against rounds and against what was sent."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6.6), layout="constrained")
    axes = figure.subplots(2, 2, sharey="row")
    for row, (key, label) in enumerate((("test_accuracy", "test accuracy"), ("test_loss", "test loss"))):
        for column, (place, where) in enumerate(((None, "round"), (sent, "sent, both ways (MB)"))):
            _panel(axes[row][column], groups, values(key), place)
            axes[row][column].set(xlabel=where, ylabel=label if column == 0 else "")
    _log_if_wide(axes[1][0], groups)
    axes[0][0].set_title(_seeds(groups))
    legend_below(figure, axes[0][0])
    return figure


def _panel(axes: Any, groups: Sequence[Group], value: Value, place: Value | None) -> None:
    band = 0.18 if len(groups) <= 4 else 0.10
    for number, group in enumerate(groups):
        rounds, mean, deviation = spread(group, value)
        if not rounds:
            continue
        at = _places(group, rounds, place)
        style = line(number, len(rounds))
        axes.plot(at, mean, label=group.label, **style)
        if deviation.any():
            axes.fill_between(at, mean - deviation, mean + deviation, color=style["color"], alpha=band, linewidth=0)
    axes.set_xlim(left=0)
    if place is None:
        axes.xaxis.get_major_locator().set_params(integer=True)


def _places(group: Group, rounds: list[int], place: Value | None) -> Floats | list[int]:
    if place is None:
        return rounds
    each = [place(run) for run in group.runs if run.records]
    return np.array([np.mean([found[r] for found in each if r in found]) for r in rounds])


def _log_if_wide(axes: Any, groups: Sequence[Group]) -> None:
    """A loss that spans more than a factor of 20 reads better on a logarithmic axis."""
    means = [mean for mean in (spread(group, values("test_loss"))[1] for group in groups) if len(mean)]
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
    measured = [group for group in groups if any("drift" in r for run in group.runs for r in run.records)][:PANELS]
    if not measured:
        return None
    from matplotlib.figure import Figure

    columns = min(3, len(measured))
    rows = -(-len(measured) // columns)
    figure = Figure(figsize=(1.5 + 3.6 * columns, 0.8 + 2.9 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for panel, group in zip(axes.flat, measured, strict=False):
        _layers(panel, group)
    for panel in axes.flat[len(measured) :]:
        panel.set_visible(False)
    figure.supxlabel("round", fontsize=10)
    figure.supylabel("drift diversity (1/S: equal updates, 1: orthogonal)", fontsize=10)
    legend_below(figure, axes[0][0])
    return figure


def _layers(axes: Any, group: Group) -> None:
    names = next(list(r["drift"]["layers"]) for run in group.runs for r in run.records if "drift" in r)
    for number, name in enumerate(names):
        rounds, mean, deviation = spread(group, _layer(name))
        style = line(number, len(rounds))
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


def _layer(name: str) -> Value:
    def value(run: RunRecord) -> dict[int, float]:
        found = {r["round"]: r["drift"]["layers"].get(name) for r in run.records if "drift" in r}
        return {round: float(number) for round, number in found.items() if number is not None}

    return value
