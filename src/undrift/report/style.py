"""Matplotlib as all our pictures use it: lines that stay apart for the colour-blind and in black and white."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from undrift.errors import InputError
from undrift.report.looks import DASHES, MARKERS, Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKS = 9
"""Markers along a line."""


def line(look: Look, points: int) -> dict[str, Any]:
    """How a line is drawn; its markers do not sit on top of its neighbours'."""
    step = max(1, points // MARKS)
    return {
        "color": look.colour,
        "linestyle": (0, DASHES[look.dash]) if DASHES[look.dash] else "-",
        "marker": MARKERS[look.marker][0],
        "markevery": (look.marker * max(1, step // 4) % step, step),
        "markersize": 5,
        "markeredgecolor": "black",
        "markeredgewidth": 0.5,
        "linewidth": 1.6,
    }


def styled() -> AbstractContextManager[None]:
    """Matplotlib with our defaults; says what to install where it is missing."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("pictures need matplotlib: install undrift[report]") from None
    return matplotlib.rc_context(
        {
            "font.size": 10,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.6,
            "axes.axisbelow": True,
            "figure.dpi": 110,
            "savefig.dpi": 150,
            "svg.hashsalt": "undrift",
            "legend.frameon": False,
            "axes.titlesize": 10.5,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
        }
    )


def save(figure: Figure, out: Path, name: str, note: str = "") -> list[Path]:
    """Write a figure as PNG and SVG; a note (that a result is scaled, say) stands on its top."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{name}.png", out / f"{name}.svg"]
    if note:
        figure.text(0.0, 1.01, note, transform=figure.transFigure, color="#A03000", fontsize=9, wrap=True)
    figure.savefig(paths[0], bbox_inches="tight")
    figure.savefig(paths[1], bbox_inches="tight", metadata={"Date": None})
    return paths


def legend_below(figure: Figure, axes: Any, columns: int = 4) -> None:
    """One legend for the whole figure, under it."""
    handles, labels = axes.get_legend_handles_labels()
    longest = max((len(text) for text in labels), default=1)
    fitting = max(1, min(columns, int(120 / (longest + 8)), len(labels)))
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=fitting, handlelength=4)
