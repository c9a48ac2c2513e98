"""What scaling changes, and what it flatten."""

from __future__ import annotations

from undrift.recipes.fsl import FEW_EMNIST, MANY_CIFAR
from undrift.recipes.recipe import merged
from undrift.recipes.scale import differences, scaled


def test_a_client_keeps_its_samples_while_the_clients_shrink() -> None:
    small = scaled(MANY_CIFAR, 0.1)
    assert small["partition"]["clients"] == 100
    assert small["data"]["limit"] == 5000
    assert small["train"]["rounds"] == 100
    assert small["train"]["cohort"] == 5
    assert small["server_data"]["contributors"] == 1
    assert small["model"] == MANY_CIFAR["model"]
    assert "limit" not in MANY_CIFAR["data"]


def test_every_class_keeps_a_client() -> None:
    small = scaled(merged(FEW_EMNIST, {"partition": {"classes": 1}}), 0.1)
    assert small["partition"]["clients"] == 45
    assert small["data"]["limit"] == 10_800
    assert small["server_data"]["size"] == 45


def test_full_scale_changes_nothing() -> None:
    assert scaled(MANY_CIFAR, 1.0) == MANY_CIFAR
    assert scaled(MANY_CIFAR, 1.0, rounds=7)["train"]["rounds"] == 7


def test_milestones_move_with_the_rounds() -> None:
    falling = merged(MANY_CIFAR, {"algorithm": {"name": "fsl", "fsl": {"gamma_milestones": [100, 200]}}})
    assert scaled(falling, 0.1)["algorithm"]["fsl"]["gamma_milestones"] == [10, 20]
    assert falling["algorithm"]["fsl"]["gamma_milestones"] == [100, 200]


def test_differences_are_listed() -> None:
    found = differences(MANY_CIFAR, scaled(MANY_CIFAR, 0.5))
    assert "train.rounds: 1000 -> 500" in found
    assert "data.limit: all -> 25000" in found
