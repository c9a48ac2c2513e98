"""From the files of ``gather.py`` to ``src/undrift/diagnose/experience.json``.

python benchmarks/advice/learn.py --out build/experience
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from undrift.core.files import write_atomic
from undrift.diagnose import experience

PLACE = Path(experience.__file__).with_suffix(".json")


def gains(chains: dict[str, Any]) -> dict[str, float]:
    """Points that each chain ended ahead of FedAvg."""
    base = statistics.fmean(chains["fedavg"]["constant"])
    return {
        name: experience.FAILED if "failed" in one else round(100 * (statistics.fmean(one["constant"]) - base), 1)
        for name, one in chains.items()
    }


def row(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """One federation."""
    features = {key: round(value, 3) for key, value in found["features"].items()}
    return {"name": name, "served": found["served"], "features": features, "gains": gains(found["chains"])}


def main() -> None:
    """The command."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--out", type=Path, default=Path("build/experience"))
    out = words.parse_args().out
    found = {path.stem: json.loads(path.read_text()) for path in sorted(out.glob("drawn-*.json"))}
    usable = {
        name: one for name, one in found.items() if "failed" not in one and "failed" not in one["chains"]["fedavg"]
    }
    rows = [row(name, one) for name, one in usable.items()]
    head = {
        "made by": "benchmarks/advice/gather.py and learn.py",
        "features": list(rows[0]["features"]),
        "chains": list(dict.fromkeys(chain for one in rows for chain in one["gains"])),
    }
    text = ",\n".join(json.dumps(one) for one in rows)
    write_atomic(PLACE, f'{json.dumps(head, indent=1)[:-2]},\n "federations": [\n{text}\n]}}\n')
    print(f"{len(rows)} federations in {PLACE}")


if __name__ == "__main__":
    main()
