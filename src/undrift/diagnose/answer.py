"""What follows from a race: what the best candidate will reach, and who would rather take another one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from undrift.diagnose.candidates import MEMORIES
from undrift.diagnose.costs import Bytes
from undrift.diagnose.race import Outcome, Standing
from undrift.errors import UndriftError
from undrift.experiment.config import Config
from undrift.rounds.progress import Monitor
from undrift.rules import named
from undrift.rules.chain import chain
from undrift.rules.privacy import Dp

FEWEST = 3
"""Evaluations that a line is laid through."""
ERRORS = 2.0
"""Standard errors on both sides of a range."""
FALLS_AFTER, FALLS_TO = 0.75, 0.25
"""Where in the run the recommended rate falls, and to which share."""


@dataclass(frozen=True)
class Expected:
    """What a run of the configured length is expected to reach."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Instead:
    """Another candidate, and when one would rather take it."""

    standing: Standing
    when: str


def expected(one: Standing, rounds: int, monitor: Monitor) -> Expected:
    """A candidate's curve carried on to the last round.

    Straight lines against ``t^-1/2`` (what curves of such races are closest to), against ``1/t`` (they soon stop to
    rise) and against ``log t`` (they never do) through the latest two thirds of the curve.
    """
    first = max(1, one.rounds // 3)
    points = [(float(round), value) for round, value in one.curve if round >= first]
    if one.rounds >= rounds or len(points) < FEWEST:
        middle = soon = never = one.value
    else:
        middle, soon, never = (_carried(points, rounds, how) for how in (lambda t: t**-0.5, lambda t: 1 / t, np.log))
    worst, best = (max, min) if monitor.less else (min, max)
    spread = ERRORS * one.error
    low, high = worst(one.value, soon, middle), best(one.value, never, middle)
    ends = sorted((low - spread, low + spread, high - spread, high + spread))
    return Expected(*(_possible(value, monitor) for value in (best(one.value, middle), ends[0], ends[-1])))


def _carried(points: Sequence[tuple[float, float]], to: int, how: Callable[[float], float]) -> float:
    slope, start = np.polyfit([how(t) for t, _ in points], [value for _, value in points], 1)
    return float(start + slope * how(float(to)))


def _possible(value: float, monitor: Monitor) -> float:
    if monitor.metric == "accuracy":
        return min(max(value, 0.0), 1.0)
    return max(value, 0.0) if monitor.less else value


def ordered(outcome: Outcome, costs: dict[str, Bytes], rate: float) -> list[Standing]:
    """The standings; of the first that cannot be told apart, the cheaper in bytes first, then the configured rate."""
    tied = outcome.tied
    cheap = sorted(tied, key=lambda one: (costs[one.racer.candidate.name].total, one.racer.config.train.lr != rate))
    return [*cheap, *(one for one in outcome.standings if one not in tied)]


def falls_after(standings: Sequence[Standing], config: Config) -> int | None:
    """The round after which the best candidate's rate is to fall; None: it follows the configured schedule.

    It falls only where the race has tried another rate: where nobody knows whether the rate is too small already, a
    smaller one may cost more than it gives.
    """
    best = standings[0].racer.candidate.label
    tried = {one.racer.config.train.lr for one in standings if one.racer.candidate.label == best}
    after, train = round(FALLS_AFTER * config.train.rounds), config.train
    return after if len(tried) > 1 and train.schedule == "constant" and 0 < after < train.rounds else None


def instead(standings: Sequence[Standing], costs: dict[str, Bytes]) -> list[Instead]:
    """For each thing that the best candidate needs: the best of the others that does without."""
    best = standings[0]
    others = [one for one in standings if one.racer.candidate.label != best.racer.candidate.label]
    name = best.racer.candidate.name
    found = dict[str, list[str]]()
    wishes: list[tuple[str, Callable[[str], bool]]] = [
        ("fewer bytes count", lambda other: costs[other].total < 0.95 * costs[name].total),
        ("clients must not keep a state", lambda other: not keeps_state(other) and keeps_state(name)),
        ("the server's data may not be used", lambda other: "fsl" in name.split("+") and "fsl" not in other.split("+")),
        ("updates must be private (dp)", lambda other: can_be_private(other) and not can_be_private(name)),
    ]
    for when, fulfils in wishes:
        other = next((one for one in others if fulfils(one.racer.candidate.name)), None)
        if other is not None:
            found.setdefault(other.racer.name, []).append(when)
    by_name = {one.racer.name: one for one in others}
    runner_up = [others[0].racer.name] if others and others[0].racer.name not in found else []
    return [Instead(by_name[key], " or ".join(found.get(key, []))) for key in (*runner_up, *found)]


def keeps_state(name: str) -> bool:
    """Whether clients remember something from one of their turns to the next."""
    return bool(MEMORIES & set(name.split("+")))


def can_be_private(name: str) -> bool:
    """Whether differential privacy can be put on a chain; server data are mostly samples of the clients' own."""
    if "fsl" in name.split("+"):
        return False
    try:
        chain(named(name), Dp(clip=1.0, noise=1.0))
    except UndriftError:
        return False
    return True


def points(difference: float, monitor: Monitor) -> str:
    """A difference in the words of its metric."""
    if not math.isfinite(difference):
        return "an unknown difference"
    return f"{100 * abs(difference):.1f} points" if monitor.metric == "accuracy" else f"{abs(difference):.3g}"
