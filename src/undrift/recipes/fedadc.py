"""Ozfatura, Ozfatura, Gündüz: FedADC: Accelerated Federated Learning with Drift Control."""

from __future__ import annotations

from typing import Any

from undrift.recipes.claims import Ahead, Claim, Reaches
from undrift.recipes.recipe import Arm, Recipe, Size, Tuning

PAPER = "FedADC"
BASE: dict[str, Any] = {
    "data": {"name": "cifar10"},
    "partition": {"scheme": "shards", "clients": 100, "shards": 2},
    "model": {"name": "cnn-adc"},
    "train": {
        "rounds": 500,
        "cohort": 20,
        "local_steps": 8,
        "batch_size": 64,
        "lr": 0.05,
        "weight_decay": 4e-4,
        "eval_every": 5,
    },
}
RATES, BETAS = (0.01, 0.025, 0.05, 0.1), (0.6, 0.7, 0.8, 0.9)
TARGET = "rounds_to_raw:0.6"


def _arms(shards: tuple[int, ...]) -> tuple[Arm, ...]:
    arms = []
    for s in shards:
        place = {"partition.shards": s, "train.lr": 0.05}
        for label, name, more in (
            ("FedAvg", "fedavg", {}),
            ("SlowMo", "slowmo", {"algorithm.slowmo.beta": 0.7}),
            ("FedADC (Nesterov)", "fedadc", {"algorithm.fedadc.beta": 0.7, "algorithm.fedadc.variant": "nesterov"}),
            ("FedADC (heavy ball)", "fedadc", {"algorithm.fedadc.beta": 0.7, "algorithm.fedadc.variant": "heavyball"}),
        ):
            sweep: dict[str, tuple[Any, ...]] = {"train.lr": RATES}
            if name != "fedavg":
                sweep[f"algorithm.{name}.beta"] = BETAS
            paper: dict[str, Any] = {"rolling_accuracy": ">0.80"} if name == "fedadc" else {}
            arms.append(Arm(label, name, {**place, **more}, sweep, paper, f"s={s}"))
    return tuple(arms)


_NOTES = (
    "The paper's claim: above 80 % within 500 rounds for every s, ahead of SlowMo and FedAvg, more so as s falls.",
    "Rolling accuracy, one evaluation every 5 rounds. The network's widths are our reading of '4 conv, 4 dense'.",
)
_SMALL = {
    "small": Size(
        "cnn-cifar has a seventeenth of cnn-adc's arithmetic; clients, cohort, local work, rounds and the grid of "
        "rates and betas are the paper's. Settings are tuned over 30 rounds, as many as the time allowed.",
        {"model.name": "cnn-cifar"},
        only=("FedAvg", "SlowMo", "FedADC (Nesterov)"),
        tuning=Tuning(rounds=30),
        seeds=1,
    )
}
_ENDED = "rolling_accuracy"
_CLAIMS = (
    Claim("FedADC ends ahead of SlowMo and FedAvg.", (Ahead("FedADC (Nesterov)", ("SlowMo", "FedAvg"), _ENDED),)),
    Claim("SlowMo ends ahead of FedAvg.", (Ahead("SlowMo", ("FedAvg",), _ENDED),)),
    Claim(
        "FedADC needs far fewer rounds than FedAvg for an accuracy that FedAvg reaches late.",
        (Ahead("FedADC (Nesterov)", ("FedAvg", "SlowMo"), "late:FedAvg"),),
    ),
    Claim("FedADC is above 80 % within 500 rounds.", (Reaches(("FedADC (Nesterov)",), _ENDED, 0.80),)),
)
_METRICS = (_ENDED, "late:FedAvg", TARGET, f"ratio:FedAvg:{TARGET}")

RECIPES = (
    Recipe(
        "fedadc-figure-1",
        PAPER,
        "figure 1",
        "CIFAR-10, 100 clients with 2 shards each",
        BASE,
        _arms((2,)),
        _METRICS,
        seeds=10,
        tuning=Tuning(rounds=50),
        notes=_NOTES,
        claims=_CLAIMS,
        sizes=_SMALL,
    ),
    Recipe(
        "fedadc-figure-2",
        PAPER,
        "figure 2",
        "CIFAR-10, 100 clients with 3 and 4 shards each",
        BASE,
        _arms((3, 4)),
        _METRICS,
        seeds=10,
        tuning=Tuning(rounds=50),
        notes=_NOTES,
        claims=_CLAIMS,
        sizes=_SMALL,
    ),
)
