"""A metric over time: its rolling mean, rise time, rounds to a value; and what is looked at in a run.

Rolling accuracy (FSL): the mean over the evaluations of the latest 20 rounds. Rise time ``T90``: the first
evaluated round whose rolling accuracy reaches 90 % of the final one (of a loss: comes within 1/0.9 of it).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WINDOW = 20
GRID = tuple(round(0.05 * step, 2) for step in range(2, 20))
LESS_IS_BETTER = ("loss", "mae", "rmse", "perplexity")
SET = "test_"

Record = dict[str, Any]


@dataclass(frozen=True)
class Monitor:
    """The metric that tells whether a run goes well, and whether less of it is better."""

    metric: str = "accuracy"
    less: bool = False

    @staticmethod
    def of(text: str) -> Monitor:
        """``accuracy``, ``f1``; ``-error`` where less is better (as it always is for a loss)."""
        metric = text.removeprefix("-")
        return Monitor(metric, text.startswith("-") or metric in LESS_IS_BETTER)

    def __str__(self) -> str:
        return f"-{self.metric}" if self.less else self.metric

    def better(self, value: float, than: float) -> bool:
        """Whether a value is better than another one."""
        return value < than if self.less else value > than

    def best(self, values: Sequence[float]) -> float:
        """The best of some values."""
        return min(values) if self.less else max(values)

    def reached(self, value: float, target: float) -> bool:
        """Whether a value is as good as a target."""
        return value <= target if self.less else value >= target

    def risen(self, value: float, final: float) -> bool:
        """Whether a value has come 90 % of the way to the final one."""
        value, final = (-value, -final) if self.less else (value, final)
        return value >= 0.9 * final if final >= 0 else 0.9 * value >= final


ACCURACY = Monitor()


@dataclass
class Patience:
    """Counts evaluations since the best value of a metric; None: for ever."""

    most: int | None
    monitor: Monitor
    key: str
    _best: float | None = None
    _since: int = 0

    def sees(self, record: Mapping[str, Any]) -> None:
        """One more evaluation; one without the metric counts for nothing."""
        if (value := record.get(self.key)) is None:
            return
        if self._best is None or self.monitor.better(value, self._best):
            self._best, self._since = value, 0
        else:
            self._since += 1

    @property
    def over(self) -> bool:
        """Whether so many evaluations have brought nothing better."""
        return self.most is not None and self._since >= self.most


def rolling(history: Sequence[Record], key: str = "test_accuracy") -> list[float]:
    """The rolling mean of a metric at every evaluated round."""
    values, window = [], deque[tuple[int, float]]()
    for record in history:
        window.append((record["round"], record[key]))
        while window[0][0] <= record["round"] - WINDOW:
            window.popleft()
        values.append(sum(value for _, value in window) / len(window))
    return values


def reached(history: Sequence[Record], monitor: Monitor, part: str = "validation") -> float | None:
    """The monitored metric's rolling mean at the end, on one of the evaluated sets; None where it is not counted."""
    key = f"{part}_{monitor.metric}"
    counted = [record for record in history if record.get(key) is not None]
    return rolling(counted, key)[-1] if counted else None


def rounds_to(
    rounds: Sequence[int], values: Sequence[float], targets: Sequence[float], monitor: Monitor = ACCURACY
) -> dict[str, int | None]:
    """The first round at which each target is reached, None where it never is."""
    return {
        f"{target:g}": next(
            (r for r, value in zip(rounds, values, strict=True) if monitor.reached(value, target)), None
        )
        for target in targets
    }


def summarise(history: Sequence[Record], targets: Sequence[float] = (), monitor: Monitor = ACCURACY) -> Record:
    """The metrics' part of ``summary.json``: each metric's final and rolling value, and the monitored one's way."""
    summary: Record = dict.fromkeys(("final_accuracy", "rolling_accuracy", "best_accuracy", "rise_time"))
    last = {key.removeprefix(SET): value for record in history for key, value in record.items() if key.startswith(SET)}
    for name, value in last.items():  # a value that was none in the end has no mean in the end
        smooth = None if value is None else rolling(_with(history, name), SET + name)[-1]
        summary |= {f"final_{name}": value, f"rolling_{name}": smooth}
    return summary | _way(_with(history, monitor.metric), targets, monitor) | {"monitor": str(monitor)}


def _with(history: Sequence[Record], metric: str) -> list[Record]:
    return [record for record in history if record.get(SET + metric) is not None]


def _way(scored: Sequence[Record], targets: Sequence[float], monitor: Monitor) -> Record:
    """Best value, rise time and rounds to targets of the monitored metric."""
    if not scored:
        return {"rounds_to": {}, "rounds_to_raw": {}}
    rounds, raw = [record["round"] for record in scored], [record[SET + monitor.metric] for record in scored]
    smooth = rolling(scored, SET + monitor.metric)
    wanted = sorted({*GRID, *targets} if monitor == ACCURACY else targets)
    return {
        f"best_{monitor.metric}": monitor.best(raw),
        "rise_time": next(
            (r for r, value in zip(rounds, smooth, strict=True) if monitor.risen(value, smooth[-1])), None
        ),
        "rounds_to": rounds_to(rounds, smooth, wanted, monitor),
        "rounds_to_raw": rounds_to(rounds, raw, wanted, monitor),
    }


def note_of(record: Mapping[str, Any] | None) -> str:
    """The newest evaluation in a few words: all that was counted on the test data, the loss last."""
    found = {key.removeprefix(SET): value for key, value in (record or {}).items() if key.startswith(SET)}
    names = [*[name for name, value in found.items() if value is not None and name != "loss"][:3], "loss"]
    return "  ".join(f"{name} {found[name]:.4f}" for name in names if found.get(name) is not None)
