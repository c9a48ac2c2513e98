"""Mai, La, Zhang: Federated Learning with Server Learning: Enhancing Performance for Non-IID Data (journal)."""

from __future__ import annotations

from undrift.recipes.recipe import Arm, Recipe, Tuning

PAPER = "FSL (journal)"
HALF, ENDED = "rounds_to:0.5", "rolling_accuracy"
GAMMAS = (0.6, 0.8, 1.0, 1.2)
RATES = (0.01, 0.02)

MANY_CLIENTS = {
    "data": {"name": "cifar10"},
    "partition": {"scheme": "classes", "clients": 1000, "classes": 2},
    "server_data": {"source": "clients", "contributors": 10, "samples": 50},
    "model": {"name": "cnn-cifar"},
    "train": {
        "rounds": 1000, "cohort": 10, "local_epochs": 1, "batch_size": 10, "lr": 0.01, "weighting": "uniform",
        "eval_every": 5,
    },
}  # fmt: skip
"""Scenario 2 on CIFAR-10: 1000 clients of 50 samples."""

_SERVER_LEARNING = {"train.server_lr": "sqrt", "train.lr": 0.02, "algorithm.fsl.gamma": 1.0}
_SERVER_SWEEP = {"train.lr": RATES, "algorithm.fsl.gamma": GAMMAS}
_NOTES = (
    "Accuracy is the rolling accuracy: the mean over the evaluations of the latest 20 rounds, taken every 5 rounds.",
    "The paper's client rate is .01 (FedDyn: .05); here it is part of the sweep, over .01 and .02.",
    "FedAvg and SCAFFOLD are not in the paper's table; FedAvg has the server rate 1, SCAFFOLD the square root of the "
    "cohort, as server learning has.",
)


def _file(size: int) -> dict[str, object]:
    return {"server_data": {"source": "file", "path": f"stl10/server-cifar10-{size}.npz"}}


TABLE_1 = Recipe(
    "fsl-table-1", PAPER, "table I",
    "CIFAR-10, 1000 clients with 2 classes each: rounds to 50 %, accuracy after 1000 rounds",
    MANY_CLIENTS,
    (
        Arm("FSL n_0=500", "fsl", _SERVER_LEARNING, _SERVER_SWEEP, {HALF: 203, ENDED: 0.6144}),
        Arm("FedDyn", "feddyn", {"train.lr": 0.05, "algorithm.feddyn.alpha": 0.1},
            {"algorithm.feddyn.alpha": (0.01, 0.05, 0.1, 0.5)}, {HALF: 502, ENDED: 0.5779}),
        Arm("FSL n_0=250", "fsl", {**_SERVER_LEARNING, "server_data.contributors": 5}, _SERVER_SWEEP,
            {HALF: 238, ENDED: 0.5845}, tuned_with="FSL n_0=500"),
        Arm("FSLsyn n_0=504", "fsl", {**_SERVER_LEARNING, **_file(504)}, _SERVER_SWEEP, {HALF: 339, ENDED: 0.5763}),
        Arm("FSLsyn n_0=720", "fsl", {**_SERVER_LEARNING, **_file(720)}, _SERVER_SWEEP, {HALF: 333, ENDED: 0.5835},
            tuned_with="FSLsyn n_0=504"),
        Arm("FedAvg", "fedavg", {"train.lr": 0.02}, {"train.lr": (0.01, 0.02, 0.05)}),
        Arm("SCAFFOLD", "scaffold", {"train.lr": 0.02, "train.server_lr": "sqrt"}, {"train.lr": RATES}),
    ),
    (HALF, ENDED),
    seeds=2, tuning=Tuning(rounds=100), notes=_NOTES,
)  # fmt: skip

RECIPES = (TABLE_1,)
