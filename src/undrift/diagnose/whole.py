"""A diagnosis from a configuration to files: probe, candidates, race, ``diagnosis.json``, ``recommended.toml``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tomli_w

from undrift.core.files import read_object, write_atomic, write_json
from undrift.core.numerics import settled
from undrift.data import DataSet
from undrift.diagnose.advice import MILD, Candidate, advise
from undrift.diagnose.answer import FALLS_TO, expected, falls_after, instead, ordered
from undrift.diagnose.budget import LONG, RUNS, Budget, budget_of, probe_samples
from undrift.diagnose.candidates import BASELINE, TWICE, Field, field_of, other_rate
from undrift.diagnose.costs import Bytes, bytes_of, configured, split_fit
from undrift.diagnose.plan import ProbePlan, plan_probe
from undrift.diagnose.probe import Findings, probe
from undrift.diagnose.race import (
    Heat,
    Outcome,
    Racer,
    Standing,
    cost,
    planned,
    race,
    race_rates,
    racer_of,
    shifted,
)
from undrift.diagnose.report import Diagnosis, Raced, page
from undrift.diagnose.track import Track, Watch, track_of
from undrift.errors import ConfigError
from undrift.experiment.config import Config
from undrift.experiment.from_config import data_of, work_of
from undrift.experiment.run_folder import check_output, dotted
from undrift.rounds.progress import Monitor
from undrift.rounds.work import Work

Say = Callable[[str], None]
Watching = Callable[[int], Watch | None]
"""Told how many times candidates will be continued; gives who is told of their progress."""
ASKED = "asked.json"
"""What a folder's diagnosis was asked for, so that it can go on with nothing else."""


@dataclass(frozen=True)
class Asked:
    """How much is asked for."""

    race: bool = True
    long: bool = False
    budget: int | None = None
    """Rounds of the race in all; None: what ``RUNS`` runs allow."""
    rates: tuple[float, ...] | None = None
    """Factors on the configured rate."""


@dataclass(frozen=True)
class Prepared:
    """Everything checked, nothing computed yet."""

    config: Config
    data: DataSet
    work: Work
    plan: ProbePlan
    asked: Asked = field(default_factory=Asked)


def prepare(
    config: Config, out: Path, asked: Asked | None = None, *, resume: bool = False, data: DataSet | None = None
) -> Prepared:
    """Load and check everything; FedAvg stands in for the algorithm, which is what we want to find."""
    asked = asked or Asked()
    check_output(out)
    _check_folder(config, out, asked, resume)
    data = data_of(config) if data is None else data
    with settled():
        work = work_of(config.with_(("algorithm", {"name": BASELINE})), data)
        plan = plan_probe(work, probe_samples(work)) if asked.race and not asked.long else plan_probe(work)
    return Prepared(config, data, work, plan, asked)


def _check_folder(config: Config, out: Path, asked: Asked, resume: bool) -> None:
    """Refuse a folder that holds something else, or another diagnosis than the one to go on with."""
    if not out.exists() or not any(out.iterdir()):
        return
    if not resume:
        raise ConfigError(f"output folder {out} is not empty; give another --out, or --resume to go on")
    if not (out / ASKED).exists():
        raise ConfigError(f"output folder {out} holds no diagnosis to resume")
    before, now = (dotted(settings) for settings in (read_object(out / ASKED), _asked(config, asked)))
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key) and not key.startswith("configuration.engine."):
            raise ConfigError(
                f"output folder {out} holds another diagnosis: {key} is {before.get(key, 'absent')!r} there "
                f"and {now.get(key, 'absent')!r} here"
            )


def _asked(config: Config, asked: Asked) -> dict[str, Any]:
    options = {
        "race": asked.race,
        "long": asked.long,
        "budget": asked.budget,
        "rates": asked.rates and list(asked.rates),
    }
    return {"configuration": config.complete(), "options": options}


def diagnose(
    ready: Prepared, out: Path, say: Say = lambda text: None, watching: Watching = lambda total: None
) -> Diagnosis:
    """Probe the federation, race the candidates, and draw the conclusions."""
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / ASKED, _asked(ready.config, ready.asked))
    with settled():
        return _diagnose(ready, out, say, watching)


def _diagnose(ready: Prepared, out: Path, say: Say, watching: Watching) -> Diagnosis:
    found = probe(ready.work, ready.plan, say)
    advice = advise(found)
    names = [*(one.name for one in advice.ranked), BASELINE]
    candidates = field_of(found, advice.drifting, broad=ready.asked.long)
    told = _as_predicted(ready, Diagnosis(found, advice, _costs(ready, names), split_fit(ready.work)), candidates)
    if not ready.asked.race:
        return told
    track = track_of(ready.config, ready.data)
    variants = len(other_rates(ready, found, candidates.candidates[0]))
    plan, why = heats_of(ready, track, candidates, variants)
    if not plan:
        return replace(told, not_raced=why)
    say(_announced(plan, variants))
    starts, jobs, place = sum(heat.racers for heat in plan), _jobs(ready.config), out / "race"
    watch = watching(starts + variants)
    prior = {one.candidate.label: -one.behind / 100 for one in candidates.predicted}
    outcome = race(track, entered(track, candidates, plan), plan, place, watch, jobs, prior)
    winner = ordered(outcome, _costs(ready, _names(outcome)), ready.config.train.lr)[0]
    if factors := other_rates(ready, found, winner.racer.candidate)[:variants]:
        outcome = race_rates(track, outcome, winner, factors, place, shifted(watch, starts), jobs)
    return with_race(ready, told, candidates, outcome)


def _names(outcome: Outcome) -> list[str]:
    return [one.racer.candidate.name for one in outcome.standings]


def _as_predicted(ready: Prepared, told: Diagnosis, field: Field) -> Diagnosis:
    """The probe's findings, with the candidates in the order of the prediction: what they gained elsewhere."""
    reasons = {one.name: f"; {one.reason}" for one in told.advice.ranked if one.reason}
    ranked = [
        replace(
            one.candidate,
            reason=f"{one.points:.1f} points ahead of FedAvg in other federations{reasons.get(one.candidate.name, '')}",
        )
        for one in field.predicted[:3]
    ]
    advice = replace(told.advice, verdict=_verdict(told, ranked[0]), ranked=ranked)
    return replace(told, advice=advice, costs=told.costs | _costs(ready, [one.name for one in ranked]))


def other_rates(ready: Prepared, found: Findings, winner: Candidate) -> tuple[float, ...]:
    """Factors on the configured rate that the winner is tried with: given ones, or what the curvature suggests."""
    if ready.asked.rates is not None:
        return tuple(factor for factor in ready.asked.rates if factor != 1)
    if ready.asked.long:
        return (1 / TWICE, TWICE)
    return (other_rate(found, winner),)


def _costs(ready: Prepared, names: Sequence[str]) -> dict[str, Bytes]:
    return {name: bytes_of(configured(ready.config, Candidate(name)), ready.data) for name in dict.fromkeys(names)}


def _jobs(config: Config) -> int | None:
    return None if config.engine.workers is None else max(1, config.engine.workers)


def heats_of(ready: Prepared, track: Track, field: Field, variants: int) -> tuple[list[Heat], str]:
    """The heats of the race; none, and why, where a race would tell nothing."""
    asked, rounds = ready.asked, ready.work.plan.rounds
    allowed = budget_of(ready.work, track.samples, LONG if asked.long else RUNS, ready.plan)
    budget = allowed if asked.budget is None else Budget(asked.budget)
    if not track.samples:
        return [], "no client has enough samples to hold some out for validation"
    plan = planned(len(field.predicted), budget, rounds, variants)
    return plan, "" if plan else f"{budget.rounds:.0f} rounds in all are too few for a race"


def entered(track: Track, field: Field, plan: Sequence[Heat]) -> list[Racer]:
    """Who races."""
    return [racer_of(track.config, one) for one in field.entered(plan[0].racers)]


def _announced(plan: Sequence[Heat], variants: int) -> str:
    told = ", then ".join(f"{heat.racers} up to round {heat.until}" for heat in plan)
    rates = f", then the best at {variants} other rate{'s' * (variants > 1)}" if variants else ""
    return f"race: {told}{rates}; {cost(plan, variants)} rounds in all"


def with_race(ready: Prepared, told: Diagnosis, field: Field, outcome: Outcome) -> Diagnosis:
    """The candidates ranked by what they reached."""
    costs = told.costs | _costs(ready, _names(outcome))
    standings = ordered(outcome, costs, ready.config.train.lr)
    rounds = ready.work.plan.rounds
    raced = Raced(
        standings,
        outcome,
        field,
        [expected(one, rounds, outcome.monitor) for one in standings],
        instead(standings, costs),
        falls_after(standings, ready.config),
    )
    reasons = {one.name: one.reason for one in told.advice.ranked}
    first = {one.racer.candidate.label: one for one in reversed(standings)}  # each candidate at its best rate
    leaders = sorted(first.values(), key=standings.index)[:3]
    ranked = [_with_reason(one, outcome.monitor, reasons) for one in leaders]
    winner = standings[0].racer.candidate
    against = {what: why for what, why in told.advice.against.items() if not any(part in what for part in winner.parts)}
    advice = replace(told.advice, verdict=_verdict(told, winner), ranked=ranked, against=against)
    return replace(told, advice=advice, costs=costs, raced=raced)


def _verdict(told: Diagnosis, winner: Candidate) -> str:
    """The probe's, unless the race has something to add to it."""
    if told.findings.excess >= MILD or winner.name == BASELINE:
        return told.advice.verdict
    return (
        f"The clients' data are alike: no drift to correct, but {winner.label} gets further than FedAvg in this time."
    )


def _with_reason(one: Standing, monitor: Monitor, reasons: dict[str, str]) -> Candidate:
    candidate = one.racer.candidate
    reached = f"reached {monitor.metric} {one.value:.4f} on validation data in {one.rounds} rounds"
    more = f"; {reasons[candidate.name]}" if reasons.get(candidate.name) else ""
    return replace(candidate, reason=reached + more)


def recommended(config: Config, diagnosis: Diagnosis) -> Config:
    """The configuration to run: the best candidate, at the rate that it raced with, which may fall at the end."""
    best, raced = configured(config, diagnosis.advice.ranked[0]), diagnosis.raced
    if raced is None:
        return best
    best = best.with_(("train.lr", raced.standings[0].racer.config.train.lr))
    if raced.falls_after is None:
        return best
    return best.with_(
        ("train.schedule", "multistep"), ("train.milestones", [raced.falls_after]), ("train.decay", FALLS_TO)
    )


def write(config: Config, diagnosis: Diagnosis, out: Path) -> str:
    """Write ``diagnosis.json``, ``diagnosis.txt`` and ``recommended.toml``; returns the page."""
    text = page(diagnosis, str(out))
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "diagnosis.json", diagnosis.as_json())
    write_atomic(out / "diagnosis.txt", text + "\n")
    write_atomic(out / "recommended.toml", tomli_w.dumps(recommended(config, diagnosis).complete()))
    return text
