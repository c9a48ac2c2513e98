"""The split identities, for every cut of every model, in float64."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from splitting import MODELS, clients, every_cut, gap, net, paper_model, run

import undrift as ud
from undrift.rounds.loop import Result

CASES = [(name, cut) for name in MODELS for cut in every_cut(paper_model(name)[0])]
SETTINGS: dict[str, Any] = {"local_epochs": 1, "batch_size": 4, "lr": 0.05, "weight_decay": 0.01, "rounds": 2}
SIZES = (4, 8, 3)


@cache
def reference(name: str, algorithm: str, norm: str = "batch") -> Result:
    model, shape = paper_model(name, norm)
    data = clients(shape, SIZES)
    if algorithm == "fedavg":
        return run(model, data, ud.fedavg(), cohort=2, **SETTINGS)
    if algorithm == "centralised":
        return run(model, data, ud.centralised(), **SETTINGS)
    return run(model, data, ud.fedavg(), local_steps=1, **SETTINGS)


@pytest.mark.parametrize(("name", "cut"), CASES)
def test_sfl_v1_is_fedavg(name: str, cut: int) -> None:
    model, shape = paper_model(name)
    data = clients(shape, SIZES)
    for faithful in (False, True):
        split = run(model, data, ud.sfl_v1(cut=cut, faithful=faithful), cohort=2, **SETTINGS)
        assert gap(split, reference(name, "fedavg")) < 1e-10


@pytest.mark.parametrize(("name", "cut"), CASES)
def test_minibatch_sfl_with_one_client_is_centralised(name: str, cut: int) -> None:
    model, shape = paper_model(name)
    data = clients(shape, SIZES)
    one = [(torch.cat([x for x, _ in data]), torch.cat([y for _, y in data]))]
    split = run(model, one, ud.minibatch_sfl(cut=cut), **SETTINGS)
    assert gap(split, reference(name, "centralised")) < 1e-10


@pytest.mark.parametrize(("name", "cut"), CASES)
def test_minibatch_sfl_synchronised_after_every_step_is_fedavg_of_one_step(name: str, cut: int) -> None:
    model, shape = paper_model(name, "group")
    algorithm = ud.minibatch_sfl(cut=cut, sync_steps=1)
    split = run(model, clients(shape, SIZES), algorithm, local_steps=1, **SETTINGS)
    assert gap(split, reference(name, "fedavg of one step", "group")) < 1e-10


@pytest.mark.parametrize(
    "changes",
    [
        {"cohort": 2},
        {"cohort": 1, "rounds": 4},
        {"local_steps": 5, "batch_size": 5},
        {"batch_size": 0},
        {"weighting": "uniform"},
        {"server_lr": 0.7},
        {"schedule": "cosine", "rounds": 4},
        {"weight_decay": 0.1},
    ],
)
@pytest.mark.parametrize("faithful", [False, True])
@pytest.mark.parametrize("norm", [False, True])
def test_sfl_v1_is_fedavg_under_all_settings(changes: dict[str, Any], faithful: bool, norm: bool) -> None:
    model, data = net(norm=norm), clients((4,), (3, 12, 8, 7))
    changes = {"batch_size": 4, **changes}
    for cut in (1, 2, "2", "4"):
        split = run(model, data, ud.sfl_v1(cut=cut, faithful=faithful), **changes)
        assert gap(split, run(model, data, ud.fedavg(), **changes)) < 1e-10


def test_sfl_v1_does_not_depend_on_the_engine() -> None:
    model, data = net(), clients((4,), (3, 12, 8, 7))
    algorithm = ud.sfl_v1(cut=1, main_lr=0.2) + ud.scaffold()
    assert gap(run(model, data, algorithm, workers=2), run(model, data, algorithm)) == 0
