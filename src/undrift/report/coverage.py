"""Coverage against mean set size of conformal predictions (the curve of FedPVR's figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from undrift.report.runs import Group
from undrift.report.style import legend_below, line

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def coverage(groups: Sequence[Group]) -> Figure | None:
    """One line for each group: further up and to the left is better."""
    known = [group for group in groups if any(run.conformal for run in group.runs)]
    if not known:
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.subplots()
    for group in known:
        curves = [run.conformal["curve"] for run in group.runs if run.conformal]
        levels = set.intersection(*({point["level"] for point in curve} for curve in curves))
        size, reached = (
            np.mean([[point[key] for point in curve if point["level"] in levels] for curve in curves], axis=0)
            for key in ("size", "coverage")
        )
        axes.plot(size, reached, label=group.label, **(line(group.look, len(size)) | {"markevery": 1}))
    methods = sorted({run.conformal["method"].upper() for group in known for run in group.runs if run.conformal})
    axes.set(xlabel="mean set size (classes)", ylabel="empirical coverage")
    axes.set_title(f"Prediction sets, {' and '.join(methods)}")
    legend_below(figure, axes, 3)
    return figure
