"""Many runs on few cores: every core has work, and who carries a run out changes nothing about it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from undrift.experiment.config import parse
from undrift.experiment.run_many import Planned, run_many, workers_for

CONFIG: dict[str, Any] = {
    "data": {"name": "synthetic"},
    "partition": {"clients": 4},
    "model": {"name": "linear"},
    "algorithm": {"name": "scaffold"},
    "train": {"rounds": 3},
}


@pytest.mark.parametrize(
    ("jobs", "waiting", "left", "workers"),
    [
        (2, 0, [], 2),  # the only run
        (2, 1, [], 0),  # another one will take the other core
        (2, 0, [1.0], 0),  # two runs, begun together
        (2, 0, [0.1], 2),  # the other one is almost done
        (2, 0, [0.5], 0),
        (4, 0, [0.1, 0.2], 4),
        (4, 0, [0.1, 0.9], 0),
        (1, 0, [], 0),
    ],
)
def test_workers_only_for_a_run_that_will_be_alone(jobs: int, waiting: int, left: list[float], workers: int) -> None:
    assert workers_for(jobs, waiting, left) == workers


def test_the_last_run_gets_the_idle_core_and_the_same_bits(tmp_path: Path) -> None:
    config = parse(CONFIG)
    alone, first, second = (Planned(name, config, tmp_path / name) for name in ("alone", "first", "second"))
    assert run_many([alone], jobs=2) == {}
    assert run_many([first, second], jobs=1) == {}
    used = {
        run.name: tomllib.loads((run.out / "config.toml").read_text())["engine"]["workers"] for run in (alone, first)
    }
    assert used == {"alone": 2, "first": 0}
    models = {(run.out / "model.safetensors").read_bytes() for run in (alone, first, second)}
    assert len(models) == 1


def test_a_run_with_workers_that_fails_says_so(tmp_path: Path) -> None:
    config = parse(CONFIG).with_(("train.lr", 1e30))
    failures = run_many([Planned("diverges", config, tmp_path / "run")], jobs=2)
    assert "not finite" in failures["diverges"]
