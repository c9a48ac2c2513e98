"""What chains gain over FedAvg in many random federations, beside what the probe finds there.

    python benchmarks/advice/gather.py --out build/experience            # goes on where it was

For each federation of `drawn.py`: the probe's findings; every candidate's curve on validation data, as a race sees it
(seed 0); and its score on test data in full runs with other seeds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from drawn import NUMBERS, drawn
from federations import resolved
from judge import LAST, kept

from undrift.data import DataSet
from undrift.data.samples import InMemory
from undrift.diagnose.advice import Candidate, drifting_layers
from undrift.diagnose.budget import probe_samples
from undrift.diagnose.candidates import chains, first_values, variants_of
from undrift.diagnose.costs import configured
from undrift.diagnose.experience import features
from undrift.diagnose.plan import plan_probe
from undrift.diagnose.probe import probe
from undrift.diagnose.track import track_of, work_on
from undrift.engines.auto import engine_for
from undrift.errors import UndriftError
from undrift.experiment.config import Config
from undrift.experiment.from_config import data_of, run_config, work_of
from undrift.rounds.loop import Run

SEEDS = (1, 2)
TEST = 5000
"""Test samples, at most: evaluation would take longer than training."""
EVERY = 3
"""Rounds between two evaluations."""


def data_for(config: Config) -> DataSet:
    """The data with fewer test samples."""
    data = data_of(config)
    assert data.test is not None
    return replace(data, test=InMemory(*data.test.take(np.arange(min(len(data.test), TEST)))))


def gathered(config: Config) -> dict[str, Any]:
    """All that is kept of one federation."""
    data = data_for(config)
    work = work_of(config.with_(("algorithm", {"name": "fedavg"})), data)
    found = probe(work, plan_probe(work, probe_samples(work)))
    track = track_of(config, data)
    values = first_values(found, drifting_layers(found.layers))
    names = [name for name in chains() if "fedprox" not in name and (found.server or "fsl" not in name.split("+"))]
    made = {one.label: _run(config, one, track, data) for name in names for one in variants_of(name, values)}
    return {"features": features(found), "served": found.server is not None, "values": values, "chains": made}


def _run(config: Config, one: Candidate, track: Any, data: Any) -> dict[str, Any]:
    try:
        raced = Run(work_on(track, configured(track.config, one)), engine_for).go()
        curve = [record.get("validation_accuracy") for record in raced.history]
    except UndriftError as error:
        return {"failed": str(error)}
    return {"curve": curve, "constant": [score(configured(config, one), seed, data) for seed in SEEDS]}


def score(config: Config, seed: int, data: Any) -> float:
    """The end of a run."""
    try:
        history = run_config(config.with_(("seed", seed), ("train.eval_every", EVERY)), None, data=data).history
    except UndriftError:
        return 0.0
    return statistics.fmean([record["test_accuracy"] for record in history][-LAST:])


def main() -> None:
    """The command."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, default=Path("build/experience"))
    out = words.parse_args().out
    for number in NUMBERS:
        name = f"drawn-{number:03d}"
        settings, server = drawn(number)

        def make(name: str = name, settings: Any = settings, server: Any = server) -> dict[str, Any]:
            try:
                return gathered(resolved(name, settings, server, out / "data"))
            except UndriftError as error:
                return {"failed": str(error)}

        kept(out / f"{name}.json", make)


if __name__ == "__main__":
    main()
