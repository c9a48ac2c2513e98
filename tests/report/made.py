"""Run folders written by hand: all that a report can show, without training anything."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from undrift.experiment.config import parse
from undrift.rounds.progress import summarise

EVIL = "<img src=x onerror=\"document.title='broken in'\">"
CLIENTS = ("north", "south", EVIL, "west")


def data_file(folder: Path) -> Path:
    """Data whose clients have names, one of them with markup in it."""
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    path = folder / "data.npz"
    client = np.array(CLIENTS)[np.sort(rng.integers(0, 4, 120))]
    x = rng.normal(size=(120, 5)).astype(np.float32)
    np.savez(path, x_train=x, y_train=y, x_test=x[:30], y_test=y[:30], client=client)
    return path


def settings(algorithm: str, seed: int, rounds: int, data: Path) -> dict[str, Any]:
    return parse(
        {
            "seed": seed,
            "data": {"name": "npz", "path": str(data)},
            "partition": {"scheme": "given"},
            "model": {"name": "mlp", "hidden": [8]},
            "algorithm": {"name": algorithm},
            "train": {"rounds": rounds},
        }
    ).complete()


def record(round: int, level: float, seed: int, layers: int = 2) -> dict[str, Any]:
    accuracy = level * (1 - math.exp(-round / 20)) + 0.01 * math.sin(round + seed)
    each = [accuracy, accuracy / 2, accuracy / 3, accuracy / 4]
    return {
        "round": round,
        "test_accuracy": accuracy,
        "test_loss": 2.3 * math.exp(-round / 30) + 0.2 - 0.1 * level,
        "train_loss": None if round == 0 else 2 * math.exp(-round / 20),
        "bytes_down": 1000 if round else 0,
        "bytes_up": 1000 if round else 0,
        "seconds": 0.5 if round else 0.0,
        **({"drift": {"model": 0.5, "layers": {f"layer{n}": 0.2 + 0.1 * n for n in range(layers)}}} if round else {}),
        "clients": {"mean": sum(each) / 4, "min": each[3], "std": 0.1, "each": each},
    }


def write_run(
    folder: Path, algorithm: str, seed: int, rounds: int, data: Path, level: float = 0.8, *, lost: bool = False
) -> None:
    """A finished run."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(tomli_w.dumps(settings(algorithm, seed, rounds, data)))
    history = [record(round, level, seed) for round in range(rounds + 1)]
    lines = [
        {"round": r, "clients": [0, 1], "lost": _lost(r) if lost else [], "lr": 0.1, "seconds": 0.5}
        for r in range(1, rounds + 1)
    ]
    for name, records in (("metrics", history), ("rounds", lines)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    summary = summarise(history) | {"bytes_down": 1000 * rounds, "bytes_up": 1000 * rounds, "seconds": 0.5 * rounds}
    (folder / "summary.json").write_text(json.dumps(summary | {"versions": {"undrift": "0.1.0"}}))


def _lost(round: int) -> list[dict[str, Any]]:
    return [{"client": EVIL, "reason": f"no answer from {EVIL}"}] if round % 3 == 0 else []


def write_comparison(root: Path, rounds: int = 30) -> Path:
    """Three algorithms, two seeds each; one loses clients."""
    data = data_file(root)
    folder = root / "compare"
    for algorithm, level in (("fedavg", 0.6), ("scaffold", 0.9), ("fedpvr+fsl", 0.8)):
        for seed in (0, 1):
            place = folder / algorithm / f"seed{seed}"
            write_run(place, algorithm, seed, rounds, data, level, lost=algorithm == "fedavg")
    return folder
