"""Candidates raced on the real federation: successive halving over a fixed number of rounds.

Every racer (a candidate with a client rate) runs a quarter of the rounds, the better half runs half of them, the best
quarter all of them; validation data, a part of every client's own, decide by rolling accuracy. FedAvg, with the rate
that served it best in the first heat, always runs the last heat too. Test accuracy is shown and decides nothing.

Jamieson, Talwalkar, Non-stochastic Best Arm Identification and Hyperparameter Optimization, 2016.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from undrift.core.files import read_lines
from undrift.diagnose.advice import Candidate
from undrift.diagnose.costs import configured
from undrift.errors import ConfigError, RunError
from undrift.experiment.config import Config
from undrift.experiment.run_many import Planned, run_many
from undrift.experiment.compare import monitor_of
from undrift.rounds.progress import reached

VALIDATION = 0.1
"""Share of every client's data held out where the configuration holds out none."""
HEATS = (4, 2, 1)
"""Parts of the full length that the heats run, and at the same time the share of the racers in them."""
BASELINE = "fedavg"
Watch = Callable[[int, str, str], None]
"""Told (runs done, the name of one under way, how far it has come)."""


@dataclass(frozen=True)
class Racer:
    """A candidate at one client rate."""

    candidate: Candidate
    config: Config

    @property
    def name(self) -> str:
        """Unique among the racers."""
        return f"{self.candidate.name}@{self.config.train.lr:g}"


@dataclass(frozen=True)
class Standing:
    """How far a racer came, and what it reached there."""

    racer: Racer
    rounds: int
    validation: float
    """Rolling accuracy on validation data; it decides."""
    test: float
    """Final test accuracy, for information."""
    earned: tuple[int, float]
    """Rounds and validation accuracy of the last heat that it qualified for."""


def racers(config: Config, candidates: Sequence[Candidate], factors: Sequence[float]) -> list[Racer]:
    """Every candidate (FedAvg among them) at every rate."""
    if config.data.validation == 0:
        config = config.with_(("data.validation", VALIDATION))
    if BASELINE not in {candidate.name for candidate in candidates}:
        candidates = [*candidates, Candidate(BASELINE)]
    return [
        Racer(candidate, configured(config, candidate).with_(("train.lr", config.train.lr * factor)))
        for candidate in candidates
        for factor in factors
    ]


def heats(count: int, rounds: int) -> list[tuple[int, int]]:
    """(racers, rounds) of every heat."""
    return [(math.ceil(count * part / HEATS[0]), max(1, rounds // part)) for part in HEATS]


def cost(count: int, rounds: int) -> int:
    """Rounds that a race of so many racers takes at most, FedAvg's last heat included."""
    return sum(number * length for number, length in heats(count, rounds)) + rounds


def rounds_for(budget: int, count: int) -> int:
    """The longest last heat that a budget of rounds allows."""
    rounds = max((r for r in range(1, budget + 1) if cost(count, r) <= budget), default=0)
    if rounds < HEATS[0]:
        raise ConfigError(f"--budget {budget}: a race of {count} needs at least {cost(count, HEATS[0])} rounds in all")
    return rounds


def race(
    field: Sequence[Racer],
    rounds: int,
    out: Path,
    watch: Watch | None = None,
    jobs: int | None = None,
) -> list[Standing]:
    """Run the race; the winner first."""
    standings: dict[str, Standing] = {}
    running, done = list(field), 0
    for number, (count, length) in enumerate(heats(len(field), rounds), 1):
        last = number == len(HEATS)
        running = _best(running, standings)[:count] if standings else running
        guests = _baseline(running, field, standings) if last else []
        earned = {guest.name: standings[guest.name].earned for guest in guests}
        _heat([*running, *guests], length, out / f"heat{number}", standings, _shifted(watch, done), jobs)
        done += len(running)
        for name in earned.keys() & standings.keys():
            standings[name] = replace(standings[name], earned=earned[name])
    return ranked(list(standings.values()))


def ranked(standings: Sequence[Standing]) -> list[Standing]:
    """By the last heat that each qualified for; but FedAvg wins where it turns out best over the full length."""
    order = sorted(standings, key=lambda s: s.earned, reverse=True)
    best = max(standings, key=lambda s: (s.rounds, s.validation))
    return [best, *(standing for standing in order if standing is not best)]


def _shifted(watch: Watch | None, before: int) -> Watch:
    """Counts on from the heats before."""
    return lambda done, name, text: watch(before + done, name, text) if watch else None


def _best(running: Sequence[Racer], standings: dict[str, Standing]) -> list[Racer]:
    able = [racer for racer in running if racer.name in standings]
    return sorted(able, key=lambda racer: standings[racer.name].validation, reverse=True)


def _baseline(running: list[Racer], field: Sequence[Racer], standings: dict[str, Standing]) -> list[Racer]:
    """FedAvg at its best rate so far, where it did not qualify."""
    if any(racer.candidate.name == BASELINE for racer in running):
        return []
    plain = [racer for racer in field if racer.candidate.name == BASELINE and racer.name in standings]
    return sorted(plain, key=lambda racer: standings[racer.name].earned, reverse=True)[:1]


def _heat(
    running: Sequence[Racer],
    rounds: int,
    out: Path,
    standings: dict[str, Standing],
    watch: Watch,
    jobs: int | None,
) -> None:
    """One heat; a racer that fails (a rate too large, say) is out."""
    planned = [Planned(racer.name, racer.config.with_(("train.rounds", rounds)), out / racer.name) for racer in running]
    failures = run_many(planned, jobs=jobs, watch=watch)
    for racer in running:
        standings.pop(racer.name, None)
        if racer.name not in failures:
            history = read_lines(out / racer.name / "metrics.jsonl")
            monitor = monitor_of(out / racer.name)
            found, score = reached(history, monitor), history[-1].get(f"test_{monitor.metric}")
            if found is None or score is None:
                raise RunError(f"{monitor.metric!r} is not counted on validation and test data")
            value = -found if monitor.less else found  # more is better in all that follows
            standings[racer.name] = Standing(racer, rounds, value, score, earned=(rounds, value))
    if not standings:
        raise RunError(f"no racer finished: {next(iter(failures.values()))}")
