"""Put the table and the picture of a finished demo into the README.

undrift demo --out DIR; python tools/readme_demo.py DIR
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from undrift.report.runs import Group, find
from undrift.report.series import layer, layers_of, spread, values
from undrift.report.style import legend_below, line, styled

ROOT = Path(__file__).parents[1]
README, PICTURE = ROOT / "README.md", ROOT / "docs" / "pictures" / "demo.png"
MENDED = ("fedavg", "scaffold", "fedpvr", "fedadc")
"""Whose drift is shown: FedAvg's, and that of three which correct the clients' steps."""


def main(folder: Path) -> None:
    """Replace what stands between the demo markers, and draw."""
    table = (folder / "table.md").read_text()
    text, count = re.subn(
        r"<!-- demo -->.*<!-- /demo -->",
        lambda _: f"<!-- demo -->\n{table}<!-- /demo -->",
        README.read_text(),
        flags=re.DOTALL,
    )
    if count != 1:
        sys.exit("the README has no place for the demo's table")
    README.write_text(text)
    PICTURE.parent.mkdir(exist_ok=True)
    with styled():
        picture(find([folder])).savefig(PICTURE, bbox_inches="tight", dpi=130, metadata={"Software": None})


def picture(groups: list[Group]) -> Figure:
    """What clients reach together on the left, how far their updates point apart on the right."""
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    order = [group for name in MENDED for group in groups if group.algorithm == name]
    for group in [*order, *(one for one in groups if one not in order)]:
        rounds, mean, deviation = spread(group, values("test_accuracy"))
        drawn(left, group, rounds, mean)
        left.fill_between(rounds, mean - deviation, mean + deviation, color=group.look.colour, alpha=0.1, linewidth=0)
    for group in order:
        rounds, mean, _ = spread(group, layer(layers_of(group)[-1]))
        drawn(right, group, rounds, smooth(list(mean)))
    left.set(xlabel="round", ylabel="test accuracy", xlim=(0, None), ylim=(0, 1))
    left.set_title("digits, one class at each client: FedAvg stalls, drift controls mend it")
    right.set(xlabel="round", ylabel="drift of the last layer", xlim=(0, None), ylim=(0, None))
    right.set_title("clients' updates point apart less")
    legend_below(figure, left, 8)
    return figure


def drawn(axes: Axes, group: Group, rounds: list[int], mean: object) -> None:
    """One algorithm's line."""
    axes.plot(rounds, mean, label=group.label, **line(group.look, len(rounds)))  # type: ignore[arg-type]


def smooth(numbers: list[float], window: int = 5) -> list[float]:
    """The mean over the latest rounds."""
    parts = [numbers[max(0, end - window) : end] for end in range(1, len(numbers) + 1)]
    return [sum(part) / len(part) for part in parts]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
