"""Who has what, as a picture: a bubble for each client and class, or bars where there are no classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from undrift.report.holdings import Holdings
from undrift.report.looks import BLUE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLIENTS = 60
"""Clients shown at most: more bubbles cannot be told apart."""
AREA = 260.0


def picture(held: Holdings) -> Figure:
    """The federation: bubbles whose area is the number of samples, or bars of the clients' sizes."""
    from matplotlib.figure import Figure

    clients = min(len(held.sizes), CLIENTS)
    classes = 6 if held.counts is None else held.counts.shape[1]
    figure = Figure(figsize=(2.2 + 0.30 * max(clients, 12), 1.6 + 0.30 * max(classes, 6)), layout="constrained")
    axes = figure.subplots()
    more = f", the first {clients} of {len(held.sizes)} clients" if len(held.sizes) > clients else ""
    axes.set_title(f"{held.title}{more}\n{held.skew}", fontsize=10, parse_math=False)
    if held.counts is None:
        axes.bar(range(clients), held.sizes[:clients], color=BLUE)
        axes.set(ylabel="samples")
    else:
        _bubbles(axes, held.counts[:clients])
    _name_clients(axes, held.names[:clients])
    return figure


def _bubbles(axes: Axes, counts: NDArray[np.int64]) -> None:
    classes = counts.shape[1]
    client, label = np.nonzero(counts)
    most = int(counts.max())
    drawn: dict[str, Any] = {"color": BLUE, "alpha": 0.75, "edgecolor": "black", "linewidth": 0.5}
    axes.scatter(client, label, s=AREA * counts[client, label] / most, **drawn)
    for size in (most, max(1, most // 4)):
        axes.scatter([], [], s=AREA * size / most, label=f"{size} samples", **drawn)
    axes.set(ylabel="class", ylim=(-0.8, classes - 0.2))
    axes.set_yticks(range(0, classes, 1 if classes <= 20 else 5))
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), labelspacing=1.2)


def _name_clients(axes: Axes, names: list[str]) -> None:
    step = 1 if len(names) <= 25 else 5
    long = max(map(len, names)) > 3
    axes.set(xlabel="client", xlim=(-0.8, len(names) - 0.2))
    axes.set_xticks(range(0, len(names), step))
    shown = [name if len(name) <= 20 else f"{name[:19]}…" for name in names[::step]]
    axes.set_xticklabels(shown, rotation=90 if long else 0, parse_math=False)
