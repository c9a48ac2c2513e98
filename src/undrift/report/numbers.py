"""Final numbers of groups of runs, which of them end best, and what may be said about it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from undrift.report.runs import Group, RunRecord
from undrift.rounds.progress import Monitor, rolling

BASELINE = "fedavg"


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation over seeds."""

    mean: float
    deviation: float
    seeds: int

    def __str__(self) -> str:
        return number(self.mean) + (f" ± {number(self.deviation)}" if self.seeds > 1 else "")


def number(value: float) -> str:
    """A number with four digits after the point, or four significant ones where it is large or tiny."""
    return f"{value:.4f}" if 0.001 <= abs(value) < 100 or value == 0 else f"{value:.4g}"


def monitor_of(groups: Sequence[Group]) -> Monitor:
    """The metric that the runs were looked at by; what finished runs say, else accuracy, else the loss."""
    runs = [run for group in groups for run in group.runs]
    for run in runs:
        if run.summary and run.summary.get("monitor"):
            return Monitor.of(str(run.summary["monitor"]))
    counted = any(record.get("test_accuracy") is not None for run in runs for record in run.records)
    return Monitor() if counted else Monitor.of("loss")


def over_seeds(group: Group, value: Callable[[RunRecord], float | None]) -> Spread | None:
    """A number of each run, over the runs that have it."""
    found = [number for number in map(value, group.runs) if number is not None]
    if not found:
        return None
    return Spread(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else 0.0, len(found))


def final(key: str) -> Callable[[RunRecord], float | None]:
    """The last value of a metric."""
    return lambda run: next((r[key] for r in reversed(run.records) if r.get(key) is not None), None)


def final_rolling(key: str) -> Callable[[RunRecord], float | None]:
    """The last rolling mean of a metric."""

    def value(run: RunRecord) -> float | None:
        scored = [record for record in run.records if record.get(key) is not None]
        return rolling(scored, key)[-1] if scored else None

    return value


def from_summary(key: str) -> Callable[[RunRecord], float | None]:
    """A number of ``summary.json``; None while a run is under way."""
    return lambda run: (run.summary or {}).get(key)


def rounds_done(run: RunRecord) -> int:
    """The last evaluated round."""
    return int(run.records[-1]["round"])


def rounds_planned(run: RunRecord) -> int | None:
    """How many rounds a run is to have."""
    train = run.settings.get("train")
    found = train.get("rounds") if isinstance(train, dict) else None
    return int(found) if found is not None else None


def finished(group: Group) -> bool:
    """Whether all runs of a group have ended."""
    return all(run.summary is not None for run in group.runs)


@dataclass(frozen=True)
class Ranking:
    """Groups from the best to the worst by the monitored metric; one for each algorithm where settings were tried."""

    monitor: Monitor
    ranked: list[tuple[Group, Spread]]
    chosen: bool
    """Whether settings were chosen on validation data."""
    undecided: bool
    """Whether an algorithm has several settings and no validation data to choose one by."""


def ranking(groups: Sequence[Group]) -> Ranking:
    """Who ends best. Test data never choose a setting: of several settings the validation data take one, or none."""
    monitor = monitor_of(groups)
    by_algorithm: dict[str, list[Group]] = {}
    for group in groups:
        by_algorithm.setdefault(group.algorithm, []).append(group)
    kept: list[Group] = []
    chosen = undecided = False
    for own in by_algorithm.values():
        best = _by_validation(own, monitor) if len(own) > 1 else None
        chosen, undecided = chosen or best is not None, undecided or (best is None and len(own) > 1)
        kept += own if best is None else [best]
    key = f"test_{monitor.metric}"
    scored = [(group, found) for group in kept if (found := over_seeds(group, final(key))) is not None]
    scored.sort(key=lambda pair: pair[1].mean, reverse=not monitor.less)
    return Ranking(monitor, scored, chosen, undecided)


def _by_validation(groups: Sequence[Group], monitor: Monitor) -> Group | None:
    key = f"validation_{monitor.metric}"
    scores = [(group, over_seeds(group, final_rolling(key))) for group in groups]
    known = [(group, score) for group, score in scores if score is not None]
    if len(known) < len(groups):
        return None
    return (min if monitor.less else max)(known, key=lambda pair: pair[1].mean)[0]


def verdict(groups: Sequence[Group]) -> list[str]:
    """What came out, in one to three sentences."""
    found = ranking(groups)
    if not found.ranked:
        return ["No test metric has been recorded yet."]
    best, score = found.ranked[0]
    metric, alone = found.monitor.metric, len(found.ranked) == 1
    seeds = f" over {score.seeds} seeds" if score.seeds > 1 else ""
    round = max(rounds_done(run) for run in best.runs)
    if alone:
        said = [f"{best.label} {_stands(best)} test {metric} {score}{seeds} after {round} rounds."]
    else:
        said = [f"{best.label} ends best: test {metric} {score}{seeds}{_lead(found, best, score)}."]
        said += _near(found, score)
    if found.undecided:
        said.append("Several settings of one algorithm are shown; no validation data chose between them.")
    elif found.chosen:
        said.append("Where several settings were tried, validation data chose one.")
    if not all(finished(group) for group in groups):
        said.append(f"Not finished: {_under_way(groups)}.")
    return said


def _stands(group: Group) -> str:
    return "ends with" if finished(group) else "has reached"


def _lead(found: Ranking, best: Group, score: Spread) -> str:
    base = next(((group, own) for group, own in found.ranked if group.algorithm == BASELINE), None)
    if base is None or base[0] is best:
        return ""
    gap = abs(score.mean - base[1].mean)
    return f", {number(gap)} {'below' if found.monitor.less else 'above'} {base[0].label} ({base[1]})"


def _near(found: Ranking, score: Spread) -> list[str]:
    """Who cannot be told from the best by these seeds."""
    others = found.ranked[1:]
    if score.seeds < 2 or any(own.seeds < 2 for _, own in others):
        return ["With one seed, small differences may be chance."]
    near = [g.label for g, own in others if abs(own.mean - score.mean) <= max(own.deviation, score.deviation)]
    return [f"Within one standard deviation of it: {', '.join(near)}."] if near else []


def _under_way(groups: Sequence[Group]) -> str:
    open_runs = [run for group in groups for run in group.runs if run.summary is None]
    run = open_runs[0]
    planned = rounds_planned(run)
    if len(open_runs) == 1:
        return f"round {rounds_done(run)}" + (f" of {planned}" if planned else "")
    return f"{len(open_runs)} of {sum(len(group.runs) for group in groups)} runs"


def sent_total(run: RunRecord) -> float | None:
    """Megabytes of a finished run, both ways."""
    return None if run.summary is None else (run.summary["bytes_down"] + run.summary["bytes_up"]) / 1e6


def target_rounds(group: Group, target: str) -> str:
    """Rounds until the rolling metric reached a target, on average; a dash where a run never did."""
    summaries: list[dict[str, Any]] = [run.summary for run in group.runs if run.summary is not None]
    reached = [summary["rounds_to"].get(target) for summary in summaries if summary.get("rounds_to")]
    if not reached or None in reached:
        return "–"
    return f"{statistics.fmean(reached):.0f}"
