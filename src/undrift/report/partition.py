"""Who has what: a bubble for each client and class."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from undrift.measure.skew import skew_of
from undrift.report.style import COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS = 60
"""Clients shown at most: more bubbles cannot be told apart."""
AREA = 260.0


def bubbles(counts: NDArray[np.int64], title: str) -> Figure:
    """The table [clients, classes] as bubbles whose area is the number of samples."""
    from matplotlib.figure import Figure

    shown = counts[:CLIENTS]
    clients, classes = shown.shape
    figure = Figure(figsize=(2.2 + 0.30 * max(clients, 12), 1.6 + 0.30 * max(classes, 6)), layout="constrained")
    axes = figure.subplots()
    client, label = np.nonzero(shown)
    most = int(shown.max())
    area = AREA * shown[client, label] / most
    axes.scatter(client, label, s=area, color=COLOURS[0], alpha=0.75, edgecolor="black", linewidth=0.5)
    for size in (most, max(1, most // 4)):
        axes.scatter(
            [],
            [],
            s=AREA * size / most,
            color=COLOURS[0],
            alpha=0.75,
            edgecolor="black",
            linewidth=0.5,
            label=f"{size} samples",
        )
    skew = skew_of(counts)
    more = f", the first {clients} of {len(counts)} clients" if len(counts) > clients else ""
    axes.set_title(f"{title}{more}\nearth mover's distance {skew.emd:.2f}", fontsize=10)
    axes.set(xlabel="client", ylabel="class", xlim=(-0.8, clients - 0.2), ylim=(-0.8, classes - 0.2))
    step = 1 if classes <= 20 else 5
    axes.set_yticks(range(0, classes, step))
    axes.set_xticks(range(0, clients, 1 if clients <= 25 else 5))
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), labelspacing=1.2)
    return figure
