"""From measured rounds to medians and ratios."""

from __future__ import annotations

import statistics
from typing import Any

from works import WARM, WORKS, Bar

CLOSE = 0.25
"""Systems did the same work if the loss fell by the same amount, up to this share of the median fall."""

Result = dict[str, Any]


def a_round(seconds: list[float], eval_every: int, turn: int | None) -> list[float]:
    """Seconds a round, warm: single rounds; where there are evaluations, means over windows that hold one each."""
    warm = seconds[(turn or WARM) - 1 :] if len(seconds) >= (turn or WARM) else seconds
    size = min(eval_every or 1, len(warm))
    return [statistics.fmean(warm[start : start + size]) for start in range(len(warm) - size + 1)]


def by_turn(run: Result, eval_every: int, turn: int) -> list[float]:
    """A round's seconds in every turn after the first (whose first round the seconds do not have)."""
    middle = statistics.fmean if eval_every else statistics.median
    seconds = run["seconds"]
    return [middle(seconds[start : start + turn]) for start in range(turn - 1, len(seconds), turn)]


def summarise(result: Result) -> None:
    """Add medians, spread, start-up and memory to every system of a result."""
    every = result["spec"]["eval_every"]
    for entry in result["systems"].values():
        runs = [run for run in entry["runs"] if "failed" not in run]
        if not runs:
            continue
        rounds = [a_round(run["seconds"], every, result.get("turn")) for run in runs]
        medians = [statistics.median(part) for part in rounds]
        pooled = sorted(second for part in rounds for second in part)
        low, high = (pooled[round(share * (len(pooled) - 1))] for share in (0.25, 0.75))
        entry["summary"] = {
            "seconds_a_round": statistics.median(medians),
            "medians_of_runs": medians,
            "quartiles_over_rounds": [low, high],
            "start_up_seconds": statistics.median(
                run["first_round_end"] - median for run, median in zip(runs, medians, strict=True)
            ),
            "cpu_seconds_a_round": statistics.median(run["cpu_a_round"] for run in runs),
            "peak_pss_mb": max(run["pss_mb"] for run in runs),
            "peak_rss_mb": max(run["rss_mb"] for run in runs),
            "final_loss": statistics.median(run["loss"] for run in runs),
            "parameters": runs[0]["parameters"],
            "versions": runs[0]["versions"],
        }
    _compare_losses(result)


def _compare_losses(result: Result) -> None:
    """Note which systems' loss fell about as far as the median system's (other algorithms, models: no comparison)."""
    done = [entry for entry in result["systems"].values() if "summary" in entry]
    alike = [e for e in done if not {"algorithm", "model", "users", "cohort"} & e["settings"].keys()]
    if not alike:
        return
    start = alike[0]["runs"][0]["untrained_loss"]
    falls = [start - entry["summary"]["final_loss"] for entry in alike]
    middle = statistics.median(falls)
    for entry, fall in zip(alike, falls, strict=True):
        same_model = entry["summary"]["parameters"] == alike[0]["summary"]["parameters"]
        entry["summary"]["same_work"] = bool(same_model and abs(fall - middle) <= CLOSE * abs(middle))


def bars_of(result: Result) -> list[Bar]:
    """The bars of a result's work; what is compared with another checkout brings its own."""
    work = WORKS.get(result["work"])
    return list(work.bars) if work else [Bar(**bar) for bar in result["bars"]]


def ratio(result: Result, bar: Bar, key: str = "seconds_a_round") -> float | None:
    """How many times as much the slow side takes, each side at its best; None if a side was not measured.

    Where systems took turns, times are compared turn by turn: the median over a run's turns, then over runs.
    """
    sides = []
    for names in (bar.fast, bar.slow):
        found = {name: result["systems"][name]["summary"][key] for name in names if _has(result, name)}
        if not found:
            return None
        sides.append(min(found, key=lambda name: float(found[name])))
    if key == "seconds_a_round" and "turn" in result:
        return statistics.median(by_run(result, *sides))
    fast, slow = (result["systems"][name]["summary"][key] for name in sides)
    return float(slow / fast)


def by_run(result: Result, fast: str, slow: str) -> list[float]:
    """The ratio of two systems in every run, from their turns."""
    every, turn = result["spec"]["eval_every"], result["turn"]
    found = []
    for runs in zip(*(result["systems"][name]["runs"] for name in (fast, slow)), strict=True):
        if any("failed" in run for run in runs):
            continue
        times = (by_turn(run, every, turn) for run in runs)
        found.append(statistics.median(b / a for a, b in zip(*times, strict=True)))
    return found


def _has(result: Result, name: str) -> bool:
    return "summary" in result["systems"].get(name, {})
