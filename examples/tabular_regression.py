"""Regression from a CSV file: two lines of TOML name the target and the owner of a row."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from undrift.experiment.config import parse
from undrift.experiment.from_config import run_config
from undrift.rounds.loop import Result


def write_table(path: Path) -> None:
    """Houses of five towns: area, rooms, a garden or none; the price depends on the town's land too."""
    rng = np.random.default_rng(0)
    lines = ["town,area,rooms,garden,price"]
    for number in range(600):
        town = number % 5
        area, rooms, garden = rng.uniform(40, 200), rng.integers(1, 7), rng.choice(["yes", "no"])
        price = 2.0 * area / 100 + 0.1 * rooms + 0.3 * (garden == "yes") + rng.normal(0, 0.05)
        lines.append(f"town {town},{area + 20 * town:.1f},{rooms},{garden},{price:.3f}")
    path.write_text("\n".join(lines) + "\n")


def run(out: str | Path | None = None, resume: bool = False, **settings: Any) -> Result:
    """One client for each town."""
    path = (Path(tempfile.mkdtemp()) if out is None else Path(out).parent) / "houses.csv"
    write_table(path)
    engine = {key: value for key, value in settings.items() if key in ("workers", "name")}
    config = {
        "data": {"name": "csv", "path": str(path), "label": "price", "client": "town"},
        "partition": {"scheme": "given"},
        "task": {"name": "regression", "monitor": "mae"},
        "model": {"name": "mlp", "hidden": [16]},
        "algorithm": {"name": "scaffold"},
        "train": {"rounds": settings.get("rounds", 15), "lr": 0.05, "batch_size": 16},
        "engine": engine,
    }
    return run_config(parse(config), None if out is None else Path(out), resume=resume)


if __name__ == "__main__":
    result = run()
    print(result, f"rmse {result.summary['final_rmse']:.3f}")
