"""What twice the rate, and a rate that falls at the end, give: the two best chains of each federation of `drawn.py`.

    python benchmarks/advice/gather.py --out build/experience
    python benchmarks/advice/rates.py --out build/experience              # prints a summary; goes on where it was

Gains are points over the same chain at the configured, constant rate, means over two seeds; leads are those of twice
the rate on validation data at `REACH` of the run (seed 0), as a race sees them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from drawn import drawn
from federations import resolved
from gather import SEEDS, data_for, score
from judge import kept

from undrift.diagnose.answer import FALLS_AFTER, FALLS_TO
from undrift.diagnose.candidates import TWICE, variants_of
from undrift.diagnose.costs import configured
from undrift.diagnose.race import FASTER, LATEST, REACH
from undrift.diagnose.track import track_of, work_on
from undrift.engines.auto import engine_for
from undrift.errors import UndriftError
from undrift.experiment.config import Config
from undrift.rounds.loop import Run

BEST = 2


def measured(config: Config, found: dict[str, Any]) -> dict[str, Any]:
    """Lead and gains of each of the best chains."""
    data, ends = data_for(config), {name: statistics.fmean(one["constant"]) for name, one in able(found).items()}
    track, rounds = track_of(config, data), config.train.rounds
    falls = (
        ("train.schedule", "multistep"),
        ("train.milestones", [round(FALLS_AFTER * rounds)]),
        ("train.decay", FALLS_TO),
    )
    made = {}
    for label in sorted(ends, key=lambda name: -ends[name])[:BEST]:
        one = next(c for c in variants_of(label.split(" (")[0], found["values"]) if c.label == label)
        twice = ("train.lr", TWICE * config.train.lr)
        try:
            history = Run(work_on(track, configured(track.config, one).with_(twice)), engine_for).go().history
            curve = [record["validation_accuracy"] for record in history]
        except UndriftError:
            curve = [0.0] * (rounds + 1)
        until = max(3, round(REACH * rounds))

        def end(*changes: tuple[str, Any], one: Any = one) -> float:
            runs = [score(configured(config, one).with_(*changes), seed, data) for seed in SEEDS]
            return statistics.fmean(runs)

        lead = latest(curve, until) - latest(found["chains"][label]["curve"], until)
        made[label] = {
            "lead": lead,
            "falls": end(*falls) - ends[label],
            "twice": end(twice) - ends[label],
            "twice, falls": end(twice, *falls) - ends[label],
        }
    return {"chains": made}


def able(found: dict[str, Any]) -> dict[str, Any]:
    """The chains that did not diverge."""
    return {name: one for name, one in found["chains"].items() if "failed" not in one}


def latest(curve: list[float], until: int) -> float:
    """As in a race."""
    return statistics.fmean(curve[until + 1 - max(1, -(-until // LATEST)) : until + 1])


def told(rows: list[dict[str, float]], what: str) -> str:
    """A line of the summary."""
    if not rows:
        return f"{what}: none"
    gains = {key: [100 * row[key] for row in rows] for key in rows[0] if key != "lead"}
    parts = [
        f"{key}: mean {statistics.fmean(v):+.1f}, median {statistics.median(v):+.1f}, least {min(v):+.1f}"
        for key, v in gains.items()
    ]
    return f"{what} ({len(rows)}): {'; '.join(parts)}"


def main() -> None:
    """The command."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, default=Path("build/experience"))
    out = words.parse_args().out
    rows: list[dict[str, float]] = []
    for path in sorted(out.glob("drawn-*.json")):
        found = json.loads(path.read_text())
        if "failed" in found:
            continue

        def make(name: str = path.stem, found: dict[str, Any] = found) -> dict[str, Any]:
            return measured(resolved(name, *drawn(int(name.removeprefix("drawn-"))), out / "data"), found)

        rows += kept(out / f"rates-{path.stem}.json", make)["chains"].values()
    print(told([row for row in rows if row["lead"] > FASTER], f"twice the rate ahead by more than {FASTER}"))
    print(told([row for row in rows if row["lead"] <= FASTER], "not so"))


if __name__ == "__main__":
    main()
