"""A diagnosis from a configuration to files: probe, advice, costs, race, ``diagnosis.json``, ``recommended.toml``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tomli_w

from undrift.core.files import write_atomic, write_json
from undrift.data import DataSet
from undrift.diagnose.advice import Advice, Candidate, advise
from undrift.diagnose.costs import bytes_of, configured, split_fit
from undrift.diagnose.plan import ProbePlan, plan_probe
from undrift.diagnose.probe import probe
from undrift.diagnose.race import BASELINE, Standing
from undrift.diagnose.report import Diagnosis, page
from undrift.errors import ConfigError
from undrift.experiment.config import Config
from undrift.experiment.from_config import data_of, work_of
from undrift.experiment.run_folder import check_output
from undrift.rounds.work import Work

Say = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """Everything checked, nothing computed yet."""

    config: Config
    data: DataSet
    work: Work
    plan: ProbePlan


def prepare(config: Config, out: Path) -> Prepared:
    """Load and check everything; FedAvg stands in for the algorithm, which is what we want to find."""
    check_output(out)
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"output folder {out} is not empty; give another --out")
    data = data_of(config)
    work = work_of(config.with_(("algorithm", {"name": BASELINE})), data)
    return Prepared(config, data, work, plan_probe(work))


def diagnose(ready: Prepared, say: Say = lambda text: None) -> Diagnosis:
    """Probe the federation and draw the conclusions."""
    found = probe(ready.work, ready.plan, say)
    advice = advise(found)
    names = [*advice.ranked, Candidate(BASELINE)]
    costs = {one.name: bytes_of(configured(ready.config, one), ready.data) for one in names}
    return Diagnosis(found, advice, costs, split_fit(ready.work))


def with_race(diagnosis: Diagnosis, standings: Sequence[Standing]) -> Diagnosis:
    """The candidates ranked by what they reached."""
    order = list(dict.fromkeys(standing.racer.candidate.name for standing in standings))
    by_name = {one.name: one for one in (*diagnosis.advice.ranked, *(s.racer.candidate for s in standings))}
    reached = {s.racer.candidate.name: s for s in reversed(standings)}
    ranked = [
        replace(
            by_name[name],
            reason=f"reached {reached[name].validation:.4f} on validation data in "
            f"{reached[name].rounds} rounds" + (f"; {by_name[name].reason}" if by_name[name].reason else ""),
        )
        for name in order
    ]
    advice = Advice(diagnosis.advice.verdict, ranked[:3], diagnosis.advice.against, diagnosis.advice.drifting)
    return replace(diagnosis, advice=advice, standings=standings)


def recommended(config: Config, diagnosis: Diagnosis) -> Config:
    """The configuration to run: the best candidate, at the rate that won the race if there was one."""
    best = configured(config, diagnosis.advice.ranked[0])
    if diagnosis.standings:
        best = best.with_(("train.lr", diagnosis.standings[0].racer.config.train.lr))
    return best


def write(config: Config, diagnosis: Diagnosis, out: Path) -> str:
    """Write ``diagnosis.json``, ``diagnosis.txt`` and ``recommended.toml``; returns the page."""
    text = page(diagnosis, str(out))
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "diagnosis.json", diagnosis.as_json())
    write_atomic(out / "diagnosis.txt", text + "\n")
    write_atomic(out / "recommended.toml", tomli_w.dumps(recommended(config, diagnosis).complete()))
    return text
