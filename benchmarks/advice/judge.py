"""How good is the advice? Every candidate in full against what ``undrift diagnose`` recommends, on many federations.

    python benchmarks/advice/judge.py --part held-out --out build/advice        # about an hour on one core; resumable
    python benchmarks/advice/table.py --out build/advice                      # writes benchmarks/advice/README.md

The advice sees seed 0 of the training; all runs that it is judged by have other seeds. Costs are seconds of processor
time, of this process and those that it starts, without loading data.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from federations import HELD_OUT, TUNED, config_of

from undrift.core.files import write_json
from undrift.data import DataSet
from undrift.diagnose import whole
from undrift.diagnose.candidates import BETA, HIGH_BETA, chains
from undrift.errors import UndriftError
from undrift.experiment.config import Config, read
from undrift.experiment.from_config import data_of, run_config

MODES = {"default": whole.Asked(), "probe": whole.Asked(race=False), "race": whole.Asked(long=True)}
LAST = 3
"""Evaluations at the end whose mean is a run's score: a single one depends on who was drawn last."""
Algorithm = dict[str, Any]


def candidates(config: Config) -> dict[str, Algorithm]:
    """All that is tried: every chain of the first family, and a higher momentum for two of them."""
    tried = {name: _algorithm(name, BETA) for name in chains()}
    tried |= {f"{name} (beta {HIGH_BETA:g})": _algorithm(name, HIGH_BETA) for name in ("fedadc", "fedadc+fsl")}
    return {label: one for label, one in tried.items() if config.server_data or "fsl" not in one["name"].split("+")}


def _algorithm(name: str, beta: float) -> Algorithm:
    return {"name": name, **{part: {"beta": beta} for part in name.split("+") if part in ("fedadc", "slowmo")}}


def processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def kept(path: Path, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was found before, or is found now, with what it cost."""
    if path.exists():
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    start = processor_seconds()
    made = make()
    made["seconds"] = processor_seconds() - start
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, made)
    print(
        f"{path.parent.name}/{path.stem}: {made.get('score', made.get('algorithm'))} {made['seconds']:.1f} s",
        flush=True,
    )
    return made


def score(config: Config, data: DataSet) -> dict[str, Any]:
    """One run in full."""
    try:
        history = run_config(config, None, data=data).history
    except UndriftError as error:
        return {"score": 0.0, "failed": str(error)}
    values = [record["test_accuracy"] for record in history]
    return {"score": statistics.fmean(values[-LAST:])}


def advice(config: Config, data: DataSet, mode: str, out: Path) -> dict[str, Any]:
    """What is recommended, and at which price in rounds."""
    folder = out / mode
    ready = whole.prepare(config, folder, MODES[mode], resume=folder.exists(), data=data)
    found = whole.diagnose(ready, folder)
    whole.write(config, found, folder)
    best = read(folder / "recommended.toml")
    rounds = found.raced.outcome.rounds if found.raced else 0
    settings = {key: getattr(best.train, key) for key in ("lr", "schedule", "milestones", "decay", "server_lr")}
    return {"algorithm": best.algorithm, "train": settings, "rounds": rounds, "configured": config.train.rounds}


def run(name: str, seeds: list[int], out: Path, modes: list[str]) -> None:
    """All of one federation that is asked for and has not been done."""
    config, place = config_of(name, out / "data"), out / name
    data = data_of(config)
    for mode in modes:
        told = kept(place / f"advice-{mode}.json", partial(advice, config, data, mode, place))
        for seed in seeds:
            train = [(f"train.{key}", value) for key, value in told["train"].items()]
            one = config.with_(("algorithm", told["algorithm"]), *train, ("seed", seed))
            kept(place / f"recommended-{mode}-seed{seed}.json", partial(score, one, data))
    for seed in seeds:
        for label, algorithm in candidates(config).items():
            one = config.with_(("algorithm", algorithm), ("seed", seed))
            kept(place / f"full-{label}-seed{seed}.json", partial(score, one, data))


def main() -> None:
    """The command."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--part", choices=("tuned", "held-out"), default="held-out")
    words.add_argument("--only", help="names of federations, joined by commas")
    words.add_argument("--modes", default="default,probe,race", help="of these, joined by commas")
    words.add_argument(
        "--seeds", default="1,2,3", help="seeds of the training that runs are judged by, joined by commas"
    )
    words.add_argument("--out", type=Path, default=Path("build/advice"))
    asked = words.parse_args()
    names = asked.only.split(",") if asked.only else (TUNED if asked.part == "tuned" else HELD_OUT)
    for name in names:
        run(name, [int(seed) for seed in asked.seeds.split(",")], asked.out, asked.modes.split(","))


if __name__ == "__main__":
    main()
