"""The numbers of a run that a recipe asks for, from its output folder."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from undrift.core.files import read_lines, read_object
from undrift.errors import InputError
from undrift.experiment.run_folder import read_summary
from undrift.rounds.progress import rolling, rounds_to

POINTS = 100
LEVEL = 0.9
LATE = 0.95
"""Share of another line's best accuracy: what that line itself reaches late."""
LOWER_IS_BETTER = (
    "rounds_to",
    "rise_time",
    "final_loss",
    "megabytes",
    "megabytes_up",
    "models_a_round",
    "ratio",
    "late",
    "conformal:size",
    "last:drift",
)
NAMES = {
    "rolling_accuracy": "accuracy (rolling)",
    "final_accuracy": "accuracy",
    "rise_time": "T90 (rounds)",
    "final_loss": "test loss",
    "megabytes": "sent (MB)",
    "megabytes_up": "sent up (MB)",
    "models_a_round": "sent a client and round (models)",
}


def title(metric: str) -> str:
    """A metric in words."""
    kind, _, rest = metric.partition(":")
    if kind in ("ratio", "gain"):
        other, _, rest = rest.partition(":")
        return f"{title(rest)}, {'relative to' if kind == 'ratio' else 'lead over'} {other}"
    if kind in ("rounds_to", "rounds_to_raw"):
        return f"rounds to {float(rest):.0%} ({'rolling' if kind == 'rounds_to' else 'raw'})"
    if kind == "late":
        return f"rounds to {LATE:.0%} of {rest}'s best accuracy, relative to {rest}"
    if kind == "tail":
        return f"accuracy, mean of the last {rest} evaluations"
    if kind in ("last", "mean"):
        return f"{rest} ({kind})"
    if kind == "conformal":
        return f"prediction sets: {rest}"
    return NAMES[metric]


def value(metric: str, folder: Path) -> float | None:
    """One metric of a finished run; None where it has none (an accuracy never reached, say)."""
    summary = read_summary(folder)
    history = read_lines(folder / "metrics.jsonl")
    kind, _, rest = metric.partition(":")
    if kind in ("rounds_to", "rounds_to_raw"):
        accuracy = rolling(history) if kind == "rounds_to" else [record["test_accuracy"] for record in history]
        return rounds_to([record["round"] for record in history], accuracy, [float(rest)])[f"{float(rest):g}"]
    if kind in ("last", "mean"):
        found = [_inside(record, rest) for record in history]
        values = [_number(item) for item in found if item is not None]
        return None if not values else values[-1] if kind == "last" else statistics.fmean(values)
    if kind == "tail":
        return statistics.fmean(record["test_accuracy"] for record in history[-int(rest) :])
    if kind == "conformal":
        return _conformal(folder, rest)
    if metric == "final_loss":
        return None if (loss := history[-1]["test_loss"]) is None else float(loss)
    if metric == "megabytes":
        return float(summary["bytes_down"] + summary["bytes_up"]) / 1e6
    if metric == "megabytes_up":
        return float(summary["bytes_up"]) / 1e6
    if metric == "models_a_round":
        return _models_a_round(summary, folder)
    return None if summary[metric] is None else float(summary[metric])


def digits(metric: str, number: float) -> str:
    """A value of a metric as it stands in tables."""
    if metric.startswith(("rounds_to", "rise_time")):
        return f"{number:.0f}"
    if metric.startswith(("ratio", "late", "models", "conformal:size")):
        return f"{number:.2f}"
    if metric.startswith(("last", "mean")):
        return f"{number:.4g}"
    return f"{number:.1f}" if metric == "megabytes" else f"{number:.4f}"


def lower_is_better(metric: str) -> bool:
    """Whether less is more."""
    return metric.startswith(LOWER_IS_BETTER)


def curve(folder: Path) -> list[list[float]]:
    """Round, accuracy, loss and rolling accuracy, thinned to about a hundred points."""
    history = read_lines(folder / "metrics.jsonl")
    rows = [
        [record["round"], round(record["test_accuracy"], 4), round(record["test_loss"], 4), round(smooth, 4)]
        for record, smooth in zip(history, rolling(history), strict=True)
    ]
    step = max(1, len(rows) // POINTS)
    return rows[::step] if (len(rows) - 1) % step == 0 else [*rows[::step], rows[-1]]


def late(curve: list[list[float]], base: list[list[float]]) -> float | None:
    """Rounds to an accuracy that another run reaches late, divided by that run's own rounds to it."""
    target = LATE * max(point[1] for point in base)
    ours, theirs = (next((point[0] for point in line if point[1] >= target), None) for line in (curve, base))
    return ours / theirs if ours is not None and theirs else None


def measured(folder: Path) -> dict[str, Any]:
    """Further quantities of the last evaluated round."""
    usual = {
        "round",
        "test_accuracy",
        "test_loss",
        "train_loss",
        "bytes_down",
        "bytes_up",
        "seconds",
        "validation_accuracy",
        "validation_loss",
    }
    last = read_lines(folder / "metrics.jsonl")[-1]
    return {key: value for key, value in last.items() if key not in usual}


def _models_a_round(summary: dict[str, Any], folder: Path) -> float | None:
    from safetensors.torch import load_file

    heard = sum(len(line["clients"]) for line in read_lines(folder / "rounds.jsonl"))
    size = sum(t.numel() * t.element_size() for t in load_file(folder / "model.safetensors").values())
    return (summary["bytes_down"] + summary["bytes_up"]) / heard / size if heard else None


def _conformal(folder: Path, key: str) -> float | None:
    """Coverage or mean size of prediction sets; None where MAPIE is not installed."""
    path = folder / "conformal.json"
    if not path.exists():
        try:
            from undrift.experiment.conformal import conformal

            conformal(folder, LEVEL)
        except (ImportError, InputError):
            return None
    points = read_object(path)["curve"]
    return next((float(point[key]) for point in points if point["level"] == LEVEL), None)


def _inside(record: dict[str, Any], path: str) -> Any:
    for key in path.split("."):
        record = record.get(key) if isinstance(record, dict) else None  # type: ignore[assignment]
    return record


def _number(item: Any) -> float:
    """A measured quantity; of one that is given by layer or client, the mean."""
    if isinstance(item, dict):
        return statistics.fmean(_number(v) for v in item.values())
    if isinstance(item, list):
        return statistics.fmean(_number(v) for v in item)
    return float(item)
