"""A small federation for the command's tests, and what its answers look like."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from undrift.core.files import read_lines

CONFIG = """
seed = 1
[data]
name = "npz"
path = "data.npz"
[partition]
scheme = "iid"
clients = 6
[server_data]
source = "iid"
size = 12
[model]
name = "mlp"
hidden = [8]
[algorithm]
name = "fedavg"
[train]
rounds = 4
cohort = 3
batch_size = 8
lr = 0.1
[engine]
workers = 0
"""


@dataclass
class Answer:
    code: int
    out: str
    err: str


Undrift = Callable[..., Answer]


def arrays(n: int = 120, classes: int = 3) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, 5))

    def draw(count: int) -> tuple[Any, Any]:
        y = rng.permutation(np.arange(count) % classes)
        return (centres[y] + rng.normal(size=(count, 5))).astype(np.float32), y

    (x, y), (xt, yt) = draw(n), draw(60)
    return {"x_train": x, "y_train": y, "x_test": xt, "y_test": yt}


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def without_clock(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in read_lines(path)]


def same_run(one: Path, other: Path) -> bool:
    models = [(folder / "model.safetensors").read_bytes() for folder in (one, other)]
    lines = [[without_clock(folder / name) for name in ("metrics.jsonl", "rounds.jsonl")] for folder in (one, other)]
    return models[0] == models[1] and lines[0] == lines[1]


def assert_refused(answer: Answer, fragments: list[str], out: Path) -> None:
    assert answer.code == 2, answer
    lines = answer.err.strip().splitlines()
    assert 1 <= len(lines) <= 2
    assert lines[0].startswith("undrift: ")
    assert "Traceback" not in answer.err
    assert all(fragment in answer.err for fragment in fragments), answer.err
    assert answer.out == ""
    assert not out.exists()
