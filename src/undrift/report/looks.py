"""How each algorithm is drawn, in every picture and on every page: its own colour, dashes and marker.

Colours: Okabe, Ito, Color Universal Design, 2008, with a grey for the yellow, which is hard to see on white. On a dark
ground black becomes nearly white. What has no line in the table gets one from its name, so it too stays the same.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

BLACK, GREY, BLUE, GREEN, PURPLE, ORANGE, VERMILION, SKY = (
    "#000000", "#8C8C8C", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#D55E00", "#56B4E9",
)  # fmt: skip
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, BLACK, ORANGE, SKY, GREY)
ON_DARK = {BLACK: "#F2F2F2", BLUE: "#3D9FE0", GREEN: "#1DBD8F"}
"""Colours that would be too dark on a dark ground."""
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1, 1.2), (6, 2, 1, 2), (3, 1, 1, 1, 1, 1))
"""Lengths of line and gap, in widths of the line."""
MARKERS = (
    ("o", "circle"),
    ("s", "square"),
    ("^", "triangle-up"),
    ("D", "diamond"),
    ("v", "triangle-down"),
    ("P", "cross"),
    ("X", "x"),
    ("<", "triangle-left"),
    (">", "triangle-right"),
    ("*", "star"),
    ("p", "pentagon"),
)
"""By the name that Matplotlib and the one that Plotly knows."""


@dataclass(frozen=True)
class Look:
    """Colour, dashes and marker of a line, the latter two as places in the tables above."""

    colour: str
    dash: int = 0
    marker: int = 0

    @property
    def on_dark(self) -> str:
        """The colour on a dark ground."""
        return ON_DARK.get(self.colour, self.colour)


KNOWN = {
    "fedavg": Look(BLACK, 0, 0),
    "fedprox": Look(GREY, 1, 1),
    "scaffold": Look(BLUE, 0, 2),
    "fedpvr": Look(GREEN, 3, 3),
    "feddyn": Look(PURPLE, 1, 4),
    "fedadc": Look(ORANGE, 3, 5),
    "fsl": Look(VERMILION, 0, 6),
    "fedpvr+fsl": Look(SKY, 0, 7),
}


def look(algorithm: str) -> Look:
    """An algorithm's look, whatever else is in the picture."""
    if algorithm in KNOWN:
        return KNOWN[algorithm]
    number = zlib.crc32(algorithm.encode())
    dash = 1 + number // 8 % (len(DASHES) - 1)
    return Look(COLOURS[number % 8], dash, 8 + number // 64 % (len(MARKERS) - 8))


def numbered(number: int) -> Look:
    """The look of the ``number``-th line where lines are no algorithms (layers, say)."""
    return Look(COLOURS[number % len(COLOURS)], number % len(DASHES), number % len(MARKERS))


def looks(algorithms: Sequence[str]) -> list[Look]:
    """The looks of one picture's lines: an algorithm keeps its colour, its settings differ in dashes and marker."""
    found: list[Look] = []
    times: Counter[str] = Counter()
    for algorithm in algorithms:
        own = look(algorithm)
        own = replace(own, dash=(own.dash + times[algorithm]) % len(DASHES))
        own = replace(own, marker=(own.marker + times[algorithm]) % len(MARKERS))
        for step in range(len(MARKERS)):
            tried = replace(own, marker=(own.marker + step) % len(MARKERS))
            if tried not in found:
                break
        found.append(tried)
        times[algorithm] += 1
    return found
