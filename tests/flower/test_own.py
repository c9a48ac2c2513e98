"""Models, rules, tasks and metrics of one's own at sites: the simulation's bits, and only with the operator's leave."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_sites import run, same
from worlds import SITES, SIZES, Nearby, write_data

from undrift.errors import RunError
from undrift.experiment.config import parse
from undrift.experiment.from_config import run_config
from undrift.federation.setup import init

MODULE = """
from dataclasses import dataclass

import torch
from torch import nn

import undrift as ud


class Net(nn.Module):
    def __init__(self, inputs=8, outputs=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 6), nn.Tanh(), nn.Linear(6, outputs))

    def forward(self, x):
        return {"logits": self.body(x)}


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 5)

    def forward(self, tokens):
        return self.table(tokens)


@dataclass(frozen=True)
class Part(ud.Rule):
    part: float = 0.5

    def server(self, step, at):
        return self.part * step, {}
"""
F1 = {"name": "torchmetrics.classification:MulticlassF1Score", "num_classes": 3, "average": "macro"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_data(tmp_path)
    init(tmp_path / "fed", list(SITES))
    for name in SITES:
        settings = tmp_path / "fed" / name / "site.toml"
        settings.write_text(settings.read_text().replace("modules = []", 'modules = ["own_module"]'))
        assert "own_module" in settings.read_text()
    (tmp_path / "own_module.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "own_module", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def both(world: Path, **sections: Any) -> tuple[Any, Any]:
    """The same configuration in simulation and at sites."""
    shared = {"train": {"rounds": 3, "batch_size": 10, "lr": 0.1}} | sections
    simulated = run_config(
        parse(
            shared
            | {
                "data": {"name": "npz", "path": str(world / "all.npz")},
                "partition": {"scheme": "given"},
                "engine": {"workers": 0},
            }
        ),
        None,
    )
    engine = {"name": "flower", "federation": str(world / "fed" / "server"), "checkpoint_seconds": 0.0}
    config = parse(shared | {"data": {"name": "npz", "path": str(world / "all.npz")}, "engine": engine})
    return simulated, run(config, Nearby(world / "fed", world))


def test_a_model_a_rule_and_a_metric_by_name(world: Path) -> None:
    pytest.importorskip("torchmetrics")
    simulated, federated = both(
        world,
        model={"name": "own_module:Net", "arguments": {"outputs": 3}},
        algorithm={"name": "scaffold+own_module:Part", "Part": {"part": 0.7}},
        task={"metrics": {"f1": F1}, "monitor": "f1"},
    )
    assert same(simulated, federated)
    assert simulated.summary["final_f1"] == federated.summary["final_f1"] > 0


def rewrite(world: Path, x: Any, y: Any) -> None:
    """Other samples for everybody; the last twenty are for testing."""
    edges = np.cumsum((0, *SIZES))
    for name, start, end in zip(SITES, edges[:-1], edges[1:], strict=True):
        np.savez(world / f"{name}.npz", x=x[start:end], y=y[start:end])
    train = slice(0, edges[-1])
    np.savez(
        world / "all.npz",
        x_train=x[train],
        y_train=y[train],
        x_test=x[edges[-1] :],
        y_test=y[edges[-1] :],
        client=np.repeat(np.arange(3), SIZES),
    )


def test_regression_and_its_mean_error(world: Path) -> None:
    x = np.random.default_rng(0).normal(size=(sum(SIZES) + 20, 8)).astype(np.float32)
    rewrite(world, x, x.sum(1, keepdims=True))
    model = {"name": "own_module:Net", "arguments": {"outputs": 1}}
    simulated, federated = both(world, model=model, task={"name": "regression"})
    assert same(simulated, federated)
    assert simulated.summary["final_mae"] == federated.summary["final_mae"] > 0


def test_a_language_model_and_its_perplexity(world: Path) -> None:
    first = np.random.default_rng(0).integers(0, 5, (sum(SIZES) + 20, 1))
    text = (first + np.arange(7)) % 5
    rewrite(world, text[:, :-1], text[:, 1:])
    simulated, federated = both(world, model={"name": "own_module:Letters"}, task={"name": "language-model"})
    assert same(simulated, federated)
    assert simulated.summary["final_perplexity"] == federated.summary["final_perplexity"] > 1


def test_a_site_runs_no_code_that_its_operator_did_not_allow(world: Path, tmp_path: Path) -> None:
    settings = world / "fed" / SITES[0] / "site.toml"
    settings.write_text(settings.read_text().replace('modules = ["own_module"]', "modules = []"))
    site = Nearby(world / "fed", world).sites[SITES[0]]
    mark = tmp_path / "mark"
    for given in (
        {"model": {"name": "os:mkdir", "arguments": {"path": str(mark)}}},
        {"algorithm": {"name": "fedavg+os:mkdir", "mkdir": {"path": str(mark)}}},
        {"task": {"loss": "os:mkdir"}},
        {"modules": str(tmp_path)},
    ):
        with pytest.raises(RunError, match=r"site\.toml: modules|unknown key 'modules'"):
            site._config(json.dumps(given))
    assert not mark.exists()
    _, federated = both(world, model={"name": "own_module:Net"})
    reasons = [item["reason"] for line in federated.rounds for item in line["lost"]]
    assert len(reasons) == 3
    assert all("site east" in reason and "site.toml: modules" in reason for reason in reasons)
