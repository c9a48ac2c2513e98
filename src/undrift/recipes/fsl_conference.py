"""Mai, La, Zhang, Huang, Battou: Federated Learning with Server Learning for Non-IID Data (conference).

The server's rate ``eta_0`` and its epochs ``E_s`` are given; ``eta_g = gamma = 1``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from undrift.recipes.recipe import Arm, Recipe, Size, merged

PAPER = "FSL (conference)"
METRICS = ("rolling_accuracy", "rise_time")

EMNIST: dict[str, Any] = {
    "data": {"name": "emnist", "split": "balanced"},
    "partition": {"scheme": "classes", "clients": 47, "classes": 2},
    "server_data": {"source": "balanced", "size": 235},
    "model": {"name": "cnn-emnist"},
    "train": {
        "rounds": 400,
        "cohort": 5,
        "local_epochs": 1,
        "batch_size": 100,
        "lr": 0.04,
        "weighting": "uniform",
        "eval_every": 2,
    },
}
CIFAR: dict[str, Any] = {
    "data": {"name": "cifar10", "limit": 40_000},
    "partition": {"scheme": "classes", "clients": 10, "classes": 2},
    "server_data": {"source": "balanced", "size": 400},
    "model": {"name": "cnn-cifar"},
    "train": merged(EMNIST["train"], {"cohort": 3, "lr": 0.02}),
}
_PRETRAIN = {"train.pretrain_epochs": 100, "train.pretrain_lr": 0.01}
_START = "The paper does not say how long the common start was pre-trained; 100 epochs at rate .01 is our reading."


def _server(eta_0: float, epochs: int = 1, **more: Any) -> dict[str, Any]:
    return {"algorithm.fsl.gamma": 1.0, "algorithm.fsl.lr": eta_0, "algorithm.fsl.epochs": epochs, **more}


# fmt: off
def _recipe(figure: int, title: str, base: Mapping[str, Any], arms: tuple[Arm, ...], *notes: str,
            sizes: Mapping[str, Size] | None = None) -> Recipe:
    return Recipe(f"fsl-conference-figure-{figure}", PAPER, f"figure {figure}", title, base, arms, METRICS, seeds=5,
                  notes=("Accuracy is the rolling accuracy, one evaluation every 2 rounds.", *notes),
                  sizes=sizes or {})

# fmt: on


def _by_clients(make: Any) -> tuple[Arm, ...]:
    return tuple(arm for n in (10, 100) for arm in make(f"N={n}", {"partition.clients": n}))


RECIPES = (
    _recipe(
        1,
        "EMNIST, n_0=235, C=2: the server's rate",
        EMNIST,
        (Arm("FL", "fedavg"), *(Arm(f"FSL eta_0={e}", "fsl", _server(e)) for e in (0.01, 0.02, 0.03))),
        sizes={
            "small": Size(
                "EMNIST-Balanced is not at hand, so the 47-class subset with a third of its images; 200 of 400 rounds.",
                {"data.split": "sub47", "train.rounds": 200},
                seeds=1,
            )
        },
    ),
    _recipe(
        2,
        "EMNIST: the size of the server's data, no pre-training",
        EMNIST,
        (
            Arm("FL", "fedavg"),
            *(Arm(f"FSL n_0={n}", "fsl", {**_server(0.03), "server_data.size": n}) for n in (94, 235, 376, 517)),
        ),
    ),
    _recipe(
        3,
        "CIFAR-10, n_0=400, C=2: one pre-trained start for all",
        CIFAR,
        _by_clients(
            lambda group, n: (
                Arm("FL", "fedavg", {**n, **_PRETRAIN}, group=group),
                Arm("FSL", "fsl", {**_server(0.02), **n, **_PRETRAIN}, group=group),
                Arm("DS", "ds", {**n, **_PRETRAIN}, group=group),
            )
        ),
        _START,
    ),
    _recipe(
        4,
        "CIFAR-10, n_0=1000: classes a client",
        merged(CIFAR, {"server_data": {"size": 1000}}),
        tuple(
            arm
            for c in (1, 2, 5)
            for arm in (
                Arm("FL", "fedavg", {"partition.classes": c}, group=f"C={c}"),
                Arm("FSL", "fsl", {**_server(0.02), "partition.classes": c}, group=f"C={c}"),
            )
        ),
    ),
    _recipe(
        5,
        "CIFAR-10, C=2: the size of the server's data",
        CIFAR,
        tuple(Arm(f"FSL n_0={n}", "fsl", {**_server(0.02), "server_data.size": n}) for n in (200, 400, 600, 800, 1000)),
    ),
    _recipe(
        6,
        "CIFAR-10, n_0=400, C=2: the server's epochs",
        CIFAR,
        tuple(Arm(f"FSL E_s={e}", "fsl", _server(0.02, e)) for e in (1, 2, 3, 4, 5)),
    ),
)
