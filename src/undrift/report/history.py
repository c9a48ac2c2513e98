"""One run's history as a picture: what was monitored, and the loss, over the rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from undrift.report.looks import numbered
from undrift.report.series import plain_name
from undrift.report.style import line, styled
from undrift.rounds.progress import SET, Monitor, Record


def plot_history(history: Sequence[Record], monitor: str) -> Any:
    """A Matplotlib figure with a panel for the monitored metric and one for the loss."""
    from matplotlib.figure import Figure

    metrics = dict.fromkeys([Monitor.of(monitor).metric, "loss"])
    with styled():
        figure = Figure(figsize=(5 * len(metrics), 3.4), layout="constrained")
        panels = figure.subplots(1, len(metrics), squeeze=False)[0]
        for axes, metric in zip(panels, metrics, strict=True):
            found = [(r["round"], r[SET + metric]) for r in history if r.get(SET + metric) is not None]
            axes.plot([at for at, _ in found], [value for _, value in found], **line(numbered(0), len(found)))
            axes.set(xlabel="round", ylabel=plain_name(SET + metric))
    return figure
