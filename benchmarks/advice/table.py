"""From the files of ``judge.py`` to ``benchmarks/advice/README.md``: regret and cost of the advice.

A regret is how many points of accuracy the recommended configuration stays behind the best of all that was tried,
itself included, in runs with other seeds than the advice saw.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from federations import FEDERATIONS, HELD_OUT, TUNED

from undrift.core.files import write_atomic
from undrift.diagnose.candidates import chains

MODES = ("probe", "default", "race")
WITHIN = 1.0
HEAD = """# Is the advice any good?

`undrift diagnose` on small federations, against every candidate run in full. Written by `table.py`; do not edit.

```sh
python benchmarks/advice/judge.py --part held-out --out build/advice    # UNDRIFT_DATA: where the data sets are
python benchmarks/advice/table.py --out build/advice
```

The federations and their settings stand in `federations.py`. What chains are expected to gain comes from other, random
federations (`drawn.py`, `gather.py`, `learn.py`); thresholds and first values were chosen on these and on the
federations that are not among the held-out ones. One rule, for server data in doubt, was written and set after a
held-out federation had shown its absence (emnist-dirichlet-.3). *Regret*: points of test accuracy behind the best of
all tried (every chain at the configured rate, and the recommended configuration itself), means over runs with seeds
that the advice did not see (it saw 0). A run's score is the mean of its last three evaluations. *Cost*: seconds of
processor time, as a share of all chains of the first family, run once (14, with server data 28); *runs*: in runs in
full; both without loading data.
"""


@dataclass(frozen=True)
class Judged:
    """One federation under one mode."""

    regret: float
    over_fedavg: float
    cost: float
    """Of all chains in full."""
    runs: float
    """Of one candidate in full, on average."""
    said: str


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def label(algorithm: dict[str, Any], lr: float) -> str:
    """What was recommended, in short."""
    beta = algorithm.get("fedadc", {}).get("beta")
    return f"{algorithm['name']}{'' if beta is None else f', beta {beta:g}'}, lr {lr:g}"


def full_runs(place: Path) -> dict[str, list[dict[str, Any]]]:
    """The runs of each candidate, by its label."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(place.glob("full-*.json")):
        found.setdefault(path.stem.removeprefix("full-").rpartition("-seed")[0], []).append(read(path))
    return found


def judged(place: Path, mode: str) -> Judged | None:
    """How good the advice of one mode is; None where it has not been judged."""
    runs, advice = full_runs(place), place / f"advice-{mode}.json"
    ours = [read(path) for path in sorted(place.glob(f"recommended-{mode}-seed*.json"))]
    if len(runs) < count(place.name) or not advice.exists() or not ours:
        return None
    told = read(advice)
    scores = {name: statistics.fmean(one["score"] for one in found) for name, found in runs.items()}
    own = statistics.fmean(one["score"] for one in ours)
    run = statistics.fmean(one["seconds"] for found in runs.values() for one in found)
    return Judged(
        100 * (max(own, *scores.values()) - own),
        100 * (own - scores["fedavg"]),
        told["seconds"] / (run * count(place.name)),
        told["seconds"] / run,
        label(told["algorithm"], told["train"]["lr"]),
    )


def count(name: str) -> int:
    """Chains of the first family that this federation can run, variants of momentum among them."""
    served = FEDERATIONS[name][1] is not None
    return sum(served or "fsl" not in chain.split("+") for chain in chains()) + 1 + served


def rows(out: Path, names: list[str]) -> list[str]:
    """The table of some federations."""
    lines = [
        "| federation | best tried | " + " | ".join(f"{mode}: regret, cost" for mode in MODES) + " | default said |"
    ]
    lines.append("|" + "---|" * (len(MODES) + 3))
    for name in names:
        found = {mode: judged(out / name, mode) for mode in MODES}
        if found["default"] is None:
            continue
        scores = {k: statistics.fmean(one["score"] for one in v) for k, v in full_runs(out / name).items()}
        best = max(scores, key=lambda key: scores[key])
        cells = ["–" if one is None else f"{one.regret:.1f}, {one.cost:.0%}" for one in found.values()]
        lines.append(f"| {name} | {best} {scores[best]:.3f} | {' | '.join(cells)} | {found['default'].said} |")
    return lines


def summary(out: Path, names: list[str]) -> list[str]:
    """What holds over all federations of a part."""
    lines = [
        "| | federations | within one point | mean regret | worst | least over FedAvg | cost of all in full | runs |"
    ]
    lines.append("|" + "---|" * 8)
    for mode in MODES:
        found = [one for one in (judged(out / name, mode) for name in names) if one is not None]
        if not found:
            continue
        regrets = [one.regret for one in found]
        within = sum(regret <= WITHIN for regret in regrets)
        lines.append(
            f"| {mode} | {len(found)} | {within} | {statistics.fmean(regrets):.2f} | {max(regrets):.1f} | "
            f"{min(one.over_fedavg for one in found):+.1f} | {statistics.fmean(one.cost for one in found):.0%} | "
            f"{statistics.fmean(one.runs for one in found):.1f} |"
        )
    return lines


def main() -> None:
    """The command."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, default=Path("build/advice"))
    out = words.parse_args().out
    parts = [HEAD]
    for title, names in (("Held out", HELD_OUT), ("Tuned on", TUNED)):
        made = summary(out, names)
        if len(made) > 2:
            parts += [f"## {title}\n", *made, "", *rows(out, names), ""]
    write_atomic(Path(__file__).parent / "README.md", "\n".join(parts))
    print("\n".join(parts))


if __name__ == "__main__":
    main()
