"""Runs that have begun and not ended: shown as they stand, compared where all have come to, never a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from undrift.errors import ConfigError
from undrift.experiment.run_many import Planned
from undrift.recipes import metrics
from undrift.recipes.run import same_run

ROUND, ROLLING = 0, 3
"""Places in a point of a curve."""


def so_far(run: Planned) -> dict[str, Any] | None:
    """How far an unfinished run has come; None where it has not been evaluated yet, or is another run."""
    if not (run.out / "config.toml").exists() or not (run.out / "metrics.jsonl").exists():
        return None
    try:
        same_run(run)
        curve = metrics.curve(run.out)
    except ConfigError:
        return None
    if len(curve) < 2:
        return None
    return {"seed": run.config.seed, "round": curve[-1][ROUND], "rounds": run.config.train.rounds, "curve": curve}


def told(evidence: Mapping[str, Any]) -> Iterator[str]:
    """One text for each group with an unfinished run: its lines at the round that all of them have reached."""
    for group in dict.fromkeys(arm["group"] for arm in evidence["arms"] if arm.get("under_way")):
        arms = [arm for arm in evidence["arms"] if arm["group"] == group]
        open_runs = [
            f"{arm['label']} seed {run['seed']}: {run['round']} of {run['rounds']} rounds"
            for arm in arms
            for run in arm.get("under_way", [])
        ]
        yield f"{f'{group}: ' * bool(group)}{_compared(arms)}not finished: {', '.join(open_runs)}"


def _compared(arms: Sequence[Mapping[str, Any]]) -> str:
    """Where several lines stand at the same round, with the first seed."""
    begun = {arm["label"]: [*arm.get("under_way", []), *arm["runs"]] for arm in arms}
    first = {name: run["curve"] for name, runs in begun.items() for run in runs if run["seed"] == 0}
    curves = {name: curve for name, curve in first.items() if len(curve[0]) > ROLLING}  # older results have it not
    rounds = [{point[ROUND] for point in curve} for curve in curves.values()]
    last = max(set.intersection(*rounds), default=0) if len(rounds) > 1 else 0
    values = [f"{name} {_at(curve, last):.4f}" for name, curve in curves.items()]
    return f"rolling accuracy at round {last}, seed 0: {', '.join(values)}; " if last else ""


def _at(curve: list[list[float]], round: int) -> float:
    return next(point[ROLLING] for point in curve if point[ROUND] == round)
