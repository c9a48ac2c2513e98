"""Accuracy over time: rolling accuracy, rise time, rounds to an accuracy.

Rolling accuracy (FSL): the mean over the evaluations of the latest 20 rounds. Rise time ``T90``: the first
evaluated round whose rolling accuracy reaches 90 % of the final one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WINDOW = 20
GRID = tuple(round(0.05 * step, 2) for step in range(2, 20))

Record = dict[str, Any]


def rolling(history: Sequence[Record], key: str = "test_accuracy") -> list[float]:
    """The rolling accuracy at every evaluated round."""
    values = []
    for last in history:
        window = [r[key] for r in history if last["round"] - WINDOW < r["round"] <= last["round"]]
        values.append(sum(window) / len(window))
    return values


def rounds_to(rounds: Sequence[int], values: Sequence[float], targets: Sequence[float]) -> dict[str, int | None]:
    """The first round at which each target is reached, None where it never is."""
    return {
        f"{target:g}": next((r for r, value in zip(rounds, values, strict=True) if value >= target), None)
        for target in targets
    }


def summarise(history: Sequence[Record], targets: Sequence[float] = ()) -> Record:
    """The accuracy part of ``summary.json``."""
    scored = [record for record in history if record.get("test_accuracy") is not None]
    if not scored:
        names = ("final_accuracy", "rolling_accuracy", "best_accuracy", "rise_time")
        return {**dict.fromkeys(names), "rounds_to": {}, "rounds_to_raw": {}}
    rounds = [record["round"] for record in scored]
    raw = [record["test_accuracy"] for record in scored]
    smooth = rolling(scored)
    all_targets = sorted({*GRID, *targets})
    return {
        "final_accuracy": raw[-1],
        "rolling_accuracy": smooth[-1],
        "best_accuracy": max(raw),
        "rise_time": next(r for r, value in zip(rounds, smooth, strict=True) if value >= 0.9 * smooth[-1]),
        "rounds_to": rounds_to(rounds, smooth, all_targets),
        "rounds_to_raw": rounds_to(rounds, raw, all_targets),
    }


def note_of(record: Record | None) -> str:
    """The newest evaluation in a few words."""
    if not record:
        return ""
    parts = []
    if record.get("test_accuracy") is not None:
        parts.append(f"accuracy {record['test_accuracy']:.4f}")
    if record.get("test_loss") is not None:
        parts.append(f"loss {record['test_loss']:.4f}")
    return "  ".join(parts)
