"""Prediction sets: coverage on data made for it, and the command on a finished run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import undrift as ud
from undrift.cli import app
from undrift.experiment.config import parse
from undrift.experiment.conformal import Method, calibrate, conformal
from undrift.experiment.from_config import run_config

SAMPLES, CLASSES = 6000, 5
LEVELS = (0.5, 0.7, 0.9, 0.95)


@pytest.fixture(scope="module")
def made() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities that are the truth: labels are drawn from them."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(CLASSES, 0.7), SAMPLES)
    labels = (p.cumsum(1) > rng.random((SAMPLES, 1))).argmax(1)
    return p, labels


@pytest.mark.parametrize("method", ["aps", "raps"])
def test_randomised_sets_reach_their_level_on_made_data(made: tuple[np.ndarray, np.ndarray], method: Method) -> None:
    for point in calibrate(*made, LEVELS, method, randomised=True):
        # 3000 judged samples: a standard deviation of at most .009, and as much from calibration.
        assert point.coverage == pytest.approx(point.level, abs=0.04)


@pytest.mark.parametrize("method", ["aps", "raps"])
def test_plain_sets_cover_at_least_their_level_and_grow_with_it(
    made: tuple[np.ndarray, np.ndarray], method: Method
) -> None:
    points = calibrate(*made, LEVELS, method)
    assert all(point.coverage > point.level - 0.02 for point in points)
    sizes = [point.size for point in points]
    assert sizes == sorted(sizes)
    assert 1 <= sizes[0] < sizes[-1] < CLASSES


def test_client_coverage_is_the_mean_of_class_coverage_under_its_labels(made: tuple[np.ndarray, np.ndarray]) -> None:
    _, labels = made
    one_class = np.eye(CLASSES)
    pooled = np.bincount(labels, minlength=CLASSES) / SAMPLES
    point = calibrate(*made, [0.8], "aps", shares=np.vstack([one_class, pooled]))[0]
    by_class = np.array([client["coverage"] for client in point.clients[:CLASSES]])
    assert point.clients[-1]["coverage"] == pytest.approx(float(pooled @ by_class), rel=1e-9)
    assert point.clients[-1]["coverage"] == pytest.approx(point.coverage, abs=0.005)


def test_the_command_calibrates_a_finished_run(tmp_path: Path) -> None:
    config = {
        "data": {"name": "digits"},
        "partition": {"scheme": "dirichlet", "alpha": 0.3, "clients": 5},
        "model": {"name": "mlp", "hidden": [16]},
        "train": {"rounds": 8, "lr": 0.1},
        "engine": {"workers": 0},
    }
    run_config(parse(config), tmp_path / "run")
    out = CliRunner().invoke(app, ["conformal", str(tmp_path / "run"), "--level", "0.85", "--method", "aps"])
    assert out.exit_code == 0, out.output
    assert "APS sets at level 0.85" in out.output
    written = json.loads((tmp_path / "run" / "conformal.json").read_text())
    assert [point["level"] for point in written["curve"]] == [0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95]
    assert {len(point["clients"]) for point in written["curve"]} == {5}
    assert conformal(tmp_path / "run", 0.85, "aps") == written
    regularised = conformal(tmp_path / "run")["curve"]
    assert all(point["coverage"] > point["level"] - 0.1 for point in regularised)
    with pytest.raises(ud.DataError, match="177 held-out samples are too few"):
        conformal(tmp_path / "run", 0.999)


def test_a_folder_without_a_run_and_an_impossible_level_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ud.ConfigError, match=r"no config\.toml"):
        conformal(tmp_path)
    with pytest.raises(ud.ConfigError, match=r"level 1\.5"):
        conformal(tmp_path, 1.5)


def test_a_run_made_from_python_is_refused(tmp_path: Path) -> None:
    ud.simulate(nn.Linear(2, 2), [(torch.randn(8, 2), torch.arange(8) % 2)], rounds=1, workers=0, out=tmp_path / "run")
    with pytest.raises(ud.ConfigError, match="made from Python"):
        conformal(tmp_path / "run")
