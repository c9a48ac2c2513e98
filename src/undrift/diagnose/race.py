"""Candidates raced on the real federation: successive halving in which those who stay go on from where they are.

Every candidate runs a few rounds, the better half of them some more, and so on; the last ones run longest. Validation
data, a part of every client's own, decide by the mean over the latest third of the rounds made, together with the
prediction as far as few samples leave it open. All heats together take a fixed number of rounds.

Jamieson, Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, 2016.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from undrift.diagnose.advice import Candidate
from undrift.diagnose.budget import Budget
from undrift.diagnose.costs import configured
from undrift.diagnose.track import Track, Watch, advance, records, work_on
from undrift.errors import RunError
from undrift.experiment.config import Config
from undrift.experiment.run_many import Planned
from undrift.rounds.progress import Monitor

Prior = Mapping[str, float]
"""Label of a candidate -> its predicted lead over the best (not above 0), in the metric's units."""
KEPT = 2
"""One in so many candidates stays after a heat."""
FINALISTS = 2
FIRST = 3
"""Rounds of the first heat at least: in the first one nearly all candidates do the same, and momentum needs some."""
THREE_TO_TWO = 0.25
"""Standard errors that a difference must have for the odds to be 3 to 2 that it is none of chance."""
PREDICTS = 0.035
"""Standard deviation of what is predicted, as far as a race is concerned: with it, the regret was least where each
federation of the experience was left out in turn and the others predicted."""
CHANGES = 0.025
"""Standard deviation of what differences between candidates change from here to the end of the run."""
PARTS = 10
"""A heat is this part of a run, if that is more than the rounds of the first heat at least."""
REACH = 0.3
"""Of a run: how far the finalists must come. A twice as large rate shows there whether it is worth it at the end."""
FASTER = 0.03
"""What a larger rate must be ahead by: it looks better early and may end worse (`benchmarks/advice/rates.py`)."""
FASTER_SHARE = 0.1
"""The same for a metric that is no share of samples, such as a loss: of its value."""
LATEST = 3
"""One in so many of the rounds made, the latest, counts."""


@dataclass(frozen=True)
class Racer:
    """A candidate at one client rate."""

    candidate: Candidate
    config: Config

    @property
    def name(self) -> str:
        """Unique among the racers, and the name of its folder."""
        return f"{self.candidate.label}@{self.config.train.lr:g}".replace(" (", ",").replace(")", "").replace(" ", "=")


@dataclass(frozen=True)
class Heat:
    """So many racers run up to a round."""

    racers: int
    until: int


@dataclass(frozen=True)
class Standing:
    """How far a racer came, and what it reached there on validation data."""

    racer: Racer
    rounds: int
    value: float
    """The mean over the latest rounds, in the metric's own units."""
    error: float
    """Its standard error, from round to round and because validation samples are few."""
    curve: list[tuple[int, float]] = field(default_factory=list)
    sampling: float = 0.0
    """The latter part of the error."""
    handicap: float = 0.0
    """What it must be ahead by, in the metric's own units (negative where less is better)."""

    def at(self, round: int) -> float:
        """What it had reached at an earlier round."""
        return mean_of_latest(self.curve, round)


@dataclass(frozen=True)
class Outcome:
    """A race that is over."""

    standings: list[Standing]
    """The best first."""
    heats: list[Heat]
    monitor: Monitor
    failed: dict[str, str] = field(default_factory=dict)
    prior: Prior = field(default_factory=dict)

    @property
    def tied(self) -> list[Standing]:
        """The best, and those of the last heat that cannot be told apart from it."""
        best = self.standings[0]
        return [one for one in self.standings if one.rounds == best.rounds and not self.apart(best, one)]

    def apart(self, best: Standing, other: Standing) -> bool:
        """Whether the odds that one is better than the other are above 3 to 2."""
        error = error_of_difference(best, other)
        if self.prior:
            error *= math.sqrt(1 - share_of_prior(error))
        first, second = (believed(one, self.prior, self.common_error) for one in (best, other))
        return abs(first - second) > THREE_TO_TWO * error

    @property
    def common_error(self) -> float:
        """Of the last heat."""
        return largest_error([one for one in self.standings if one.rounds == self.standings[0].rounds])

    @property
    def rounds(self) -> int:
        """Rounds that were made in all."""
        return sum(one.rounds for one in self.standings)

    def with_variants(self, variants: Sequence[Standing], failed: dict[str, str]) -> Outcome:
        """The outcome with variants that ran as far as the finalists."""
        last = self.standings[0].rounds
        final = [*(one for one in self.standings if one.rounds == last), *variants]
        rest = [one for one in self.standings if one.rounds < last]
        heats = [*self.heats, Heat(len(variants), last)]
        return replace(
            self, standings=[*ranked(final, self.monitor, self.prior), *rest], heats=heats, failed=self.failed | failed
        )


def racer_of(config: Config, candidate: Candidate) -> Racer:
    """A candidate at the configured rate."""
    return Racer(candidate, configured(config, candidate))


def sizes(count: int) -> list[int]:
    """How many race in each heat."""
    found = [count]
    while found[-1] > FINALISTS:
        found.append(max(FINALISTS, found[-1] // KEPT))
    return found


def heats(count: int, budget: float, most: int) -> list[Heat]:
    """The heats of a race of at most ``count``: fewer where the finalists would not come far enough.

    Every heat but the last gets its racers a few rounds on; the finalists share what is left, up to ``most`` rounds.
    """
    pace = max(FIRST, most // PARTS)
    while True:
        *early, last = sizes(count)
        left = budget - pace * sum(early)
        until = min(most, pace * len(early) + int(left / last))
        if count <= FINALISTS + 1 or until >= REACH * most:
            break
        count -= 1
    found = [Heat(number, pace * (place + 1)) for place, number in enumerate(early)]
    return [*found, Heat(last, max(until, pace * len(early) + 1))]


def cost(plan: Sequence[Heat], variants: int = 0) -> int:
    """Rounds that the heats take in all, and so many variants of the winner that run as far."""
    before = [0, *(heat.until for heat in plan)]
    return sum(heat.racers * (heat.until - start) for heat, start in zip(plan, before, strict=False)) + (
        variants * plan[-1].until
    )


def planned(count: int, budget: Budget, most: int, variants: int = 0) -> list[Heat]:
    """The longest heats that a budget allows, with so many variants of the winner after them; none: too little."""
    for part in range(int(budget.rounds), FINALISTS, -1):
        plan = heats(count, part, most)
        starts = sum(heat.racers for heat in plan) + variants
        if cost(plan, variants) + starts * budget.start <= budget.rounds:
            return plan
    return []


def race(
    track: Track,
    field: Sequence[Racer],
    plan: Sequence[Heat],
    out: Path,
    watch: Watch | None = None,
    jobs: int | None = None,
    prior: Prior | None = None,
) -> Outcome:
    """Run the race; the first heat takes the first racers of the field.

    ``prior`` counts only where what it predicts is also what decides.
    """
    monitor = work_on(track, track.config).monitor
    prior = (prior or {}) if monitor.metric == "accuracy" else {}
    standings, out_of_it, failed = list[Standing](), list[Standing](), dict[str, str]()
    running, done = list(field[: plan[0].racers]), 0
    for number, heat in enumerate(plan):
        planned = [Planned(racer.name, racer.config, out / racer.name) for racer in running]
        failed |= advance(track, planned, heat.until, shifted(watch, done), jobs)
        done += len(running)
        able = [racer for racer in running if racer.name not in failed]
        reached = [standing(track, racer, out / racer.name, heat.until, monitor) for racer in able]
        standings = ranked(reached, monitor, prior)
        keep = plan[number + 1].racers if number + 1 < len(plan) else len(standings)
        out_of_it = [*standings[keep:], *out_of_it]
        standings = standings[:keep]
        running = [one.racer for one in standings]
    if not standings:
        raise RunError(f"no candidate finished: {next(iter(failed.values()))}")
    return Outcome([*standings, *out_of_it], list(plan), monitor, failed, prior)


def race_rates(
    track: Track,
    outcome: Outcome,
    best: Standing,
    factors: Sequence[float],
    out: Path,
    watch: Watch | None = None,
    jobs: int | None = None,
) -> Outcome:
    """One of the standings at other rates, as many rounds as it ran itself; larger ones have a handicap."""
    rate = best.racer.config.train.lr
    others = [Racer(best.racer.candidate, best.racer.config.with_(("train.lr", rate * factor))) for factor in factors]
    planned = [Planned(racer.name, racer.config, out / racer.name) for racer in others]
    failed = advance(track, planned, best.rounds, watch, jobs)
    able = [racer for racer in others if racer.name not in failed]
    found = [standing(track, racer, out / racer.name, best.rounds, outcome.monitor) for racer in able]
    ahead = handicap(best, outcome.monitor)
    slow = [one if one.racer.config.train.lr <= rate else replace(one, handicap=ahead) for one in found]
    return outcome.with_variants(slow, failed)


def handicap(best: Standing, monitor: Monitor) -> float:
    """By how much a larger rate must be ahead."""
    by = FASTER if monitor.metric == "accuracy" else FASTER_SHARE * abs(best.value)
    return -by if monitor.less else by


def standing(track: Track, racer: Racer, folder: Path, until: int, monitor: Monitor) -> Standing:
    """What a racer has reached at a round."""
    key = f"validation_{monitor.metric}"
    curve = [(r["round"], float(r[key])) for r in records(folder, until) if r.get(key) is not None]
    if not curve:
        raise RunError(f"{monitor.metric!r} is not counted on validation data")
    value = mean_of_latest(curve, until)
    sampling = error_from_samples(value, monitor, track.samples)
    error = math.hypot(error_from_rounds(latest(curve, until)), sampling)
    return Standing(racer, curve[-1][0], value, error, curve, sampling)


def latest(curve: Sequence[tuple[int, float]], until: int) -> list[float]:
    """The values of the latest rounds up to one; of the start where no round was made."""
    first = until - max(1, math.ceil(until / LATEST))
    return [value for round, value in curve if first < round <= until] or [curve[0][1]]


def mean_of_latest(curve: Sequence[tuple[int, float]], until: int) -> float:
    """What decides."""
    return statistics.fmean(latest(curve, until))


def error_from_samples(mean: float, monitor: Monitor, samples: int) -> float:
    """Of a difference between two candidates, because validation samples are few.

    Two good models are right and wrong on mostly the same samples: half the variance of each is common.
    """
    return math.sqrt(max(mean * (1 - mean), 0.0) / samples) if monitor.metric == "accuracy" else 0.0


def error_from_rounds(values: Sequence[float]) -> float:
    """Of a mean of values that vary from round to round."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def error_of_difference(one: Standing, other: Standing) -> float:
    """Of two candidates that ran equally far: clients drawn and samples are the same, so differences are what varies.

    What both gain from round to round is no error.
    """
    until = min(one.rounds, other.rounds)
    pairs = zip(latest(one.curve, until), latest(other.curve, until), strict=False)
    return math.hypot(error_from_rounds([a - b for a, b in pairs]), max(one.sampling, other.sampling))


def ranked(standings: Sequence[Standing], monitor: Monitor, prior: Prior) -> list[Standing]:
    """The best first; the first of equals stays first."""
    error = largest_error(standings)
    sign = 1 if monitor.less else -1
    return sorted(standings, key=lambda one: sign * believed(one, prior, error))


def believed(one: Standing, prior: Prior, error: float) -> float:
    """What a racer is worth in comparison with others: what it reached, less its handicap.

    It is drawn towards its prediction as far as few samples, and what may still change, leave it open: the mean of the
    posterior of a normal prior (``PREDICTS``) and a normal measurement.
    """
    if not prior:
        return one.value - one.handicap
    share = share_of_prior(error)
    return (1 - share) * one.value + share * prior[one.racer.candidate.label] - one.handicap


def share_of_prior(error: float) -> float:
    """How much the prediction weighs beside a measurement with such an error."""
    error = math.hypot(error, CHANGES)
    return error**2 / (error**2 + PREDICTS**2)


def largest_error(standings: Sequence[Standing]) -> float:
    """One for all, so that values are drawn towards their predictions alike."""
    return max((one.sampling for one in standings), default=0.0)


def shifted(watch: Watch | None, before: int) -> Watch:
    """Counts on from the heats before."""
    return lambda done, name, text: watch(before + done, name, text) if watch else None
