"""Huang, Tian, Tang: When MiniBatch SGD Meets SplitFed Learning (MiniBatch-SFL)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from undrift.recipes.claims import Ahead, Claim
from undrift.recipes.recipe import Arm, Number, Recipe, Size, merged

PAPER = "MiniBatch-SFL"
RATIOS = (0.0, 0.5, 0.8, 0.9, 0.95)
ACCURACY, LOSS = "final_accuracy", "final_loss"
OVER_V2, OVER_FL = "gain:SFL-V2:final_accuracy", "gain:FL:final_accuracy"
METRICS = (ACCURACY, LOSS, OVER_V2, OVER_FL)
BASE: dict[str, Any] = {
    "data": {"name": "cifar10"},
    "partition": {"scheme": "ratio", "clients": 10, "ratio": 0.9},
    "model": {"name": "resnet18"},
    "train": {"rounds": 100, "local_epochs": 5, "batch_size": 32, "lr": 0.01},
}
SPLIT = {"MiniBatch-SFL": "minibatch-sfl", "SFL-V1": "sfl-v1", "SFL-V2": "sfl-v2"}
_ROUNDS = "The number of rounds, 100, is our reading; which panel shows which number too."


def _arms(ratios: tuple[float, ...], cut: int, best: Mapping[str, Number] | None = None) -> tuple[Arm, ...]:
    arms = []
    for r in ratios:
        place, group = {"partition.ratio": r}, f"r={r}"
        arms.append(Arm("FL", "fedavg", place, group=group))
        for label, name in SPLIT.items():
            paper = best if best and r == 0.95 and name == "minibatch-sfl" else {}
            arms.append(Arm(label, name, {**place, f"algorithm.{name}.cut": cut}, paper=paper, group=group))
    return tuple(arms)


def _cuts(cuts: tuple[int, ...], r: float = 0.9) -> tuple[Arm, ...]:
    return tuple(
        Arm(label, name, {"partition.ratio": r, f"algorithm.{name}.cut": cut}, group=f"L_c={cut}")
        for cut in cuts
        for label, name in SPLIT.items()
    )


def _recipe(figures: str, title: str, arms: tuple[Arm, ...], metrics: tuple[str, ...] = METRICS, **more: Any) -> Recipe:
    base = merged(BASE, more.pop("base", {}))
    name = f"minibatch-sfl-figure{'s' * ('-' in figures)}-{figures}"
    numbers = figures.removesuffix("-cut")
    where = f"figure{'s' * ('-' in numbers)} {numbers.replace('-', ', ')}"
    return Recipe(name, PAPER, where, title, base, arms, metrics, notes=(_ROUNDS, *more.pop("notes", ())), **more)


_AT_95 = Claim(
    "At r = .95 MiniBatch-SFL is ahead of SFL-V2 and FL by far: more than 5 points (the paper: up to 24.1 and 17.1).",
    (Ahead("r=0.95: MiniBatch-SFL", ("r=0.95: SFL-V2", "r=0.95: FL"), ACCURACY, by=0.05),),
)
_DEEPER = Claim(
    "Accuracy generally rises with the cut L_c.",
    (Ahead("L_c=2: MiniBatch-SFL", ("L_c=1: MiniBatch-SFL",), ACCURACY),),
)
_MANY = {"partition": {"clients": 100}}
_FASHION = {"data": {"name": "fashion-mnist"}}
_UP_TO = {OVER_V2: 0.241, OVER_FL: 0.171}

# fmt: off
_SMALL_RATIO = {"small": Size(
    "30 rounds of 5 epochs, all 50,000 samples: after 10 the methods still lay close together; SFL-V1 is left out, "
    "because it equals FL to rounding.",
    {"train.rounds": 30}, seeds=1,
    only=tuple(f"r={r}: {label}" for r in (0.0, 0.8, 0.95) for label in ("FL", "MiniBatch-SFL", "SFL-V2")))}
_SMALL_NORM = {"small": Size(
    "ResNet-8 has a fortieth of ResNet-18's arithmetic and, unlike the CNN of figures 6 and 7, the batch norm whose "
    "statistics differ between clients; 1,000 samples a client, 8 rounds of 5 epochs; SFL-V1 equals FL.",
    {"model.name": "resnet8", "data.limit": 10_000, "train.rounds": 8}, seeds=1,
    only=tuple(f"r=0.95: {label}" for label in ("FL", "MiniBatch-SFL", "SFL-V2")))}
_SMALL_CUT = {"small": Size(
    "Fashion-MNIST, 20 rounds of one epoch; SFL-V1 is left out, because its result does not depend on the cut.",
    {"data.name": "fashion-mnist", "train.rounds": 20, "train.local_epochs": 1}, seeds=1,
    only=("MiniBatch-SFL", "SFL-V2"))}
# fmt: on

RECIPES = (
    _recipe(
        "2-8",
        "CIFAR-10, ResNet-18, N=10: the cut layer, accuracy and loss",
        _cuts((1, 2, 3, 4)),
        (ACCURACY, LOSS),
        claims=(_DEEPER,),
    ),
    _recipe(
        "3",
        "CIFAR-10, ResNet-18, N=10: gradient variance at and across clients",
        _cuts((1, 2, 3, 4)),
        (ACCURACY, "mean:split_variance.client", "mean:split_variance.clients"),
        measure={"split_variance": True, "every": 10},
    ),
    _recipe(
        "4-9",
        "CIFAR-10, ResNet-18, N=10, L_c=2: non-IID ratio",
        _arms(RATIOS, 2, _UP_TO),
        claims=(_AT_95,),
        sizes=_SMALL_NORM,
        notes=("The paper's leads at r=.95 are the largest that it reports ('up to').",),
    ),
    _recipe("5-10", "CIFAR-10, ResNet-18, N=100, L_c=4: non-IID ratio", _arms(RATIOS, 4), base=_MANY),
    _recipe(
        "6-7",
        "CIFAR-10, CNN, N=10, L_c=2: non-IID ratio",
        _arms(RATIOS, 2),
        base={"model": {"name": "cnn-split"}},
        claims=(_AT_95,),
        sizes=_SMALL_RATIO,
    ),
    _recipe(
        "6-7-cut",
        "CIFAR-10, CNN, N=10, r=.9: the cut layer",
        _cuts((1, 2)),
        (ACCURACY, LOSS),
        base={"model": {"name": "cnn-split"}},
        claims=(_DEEPER,),
        sizes=_SMALL_CUT,
    ),
    _recipe(
        "11-13",
        "Fashion-MNIST, ResNet-18, N=10, L_c=2: non-IID ratio",
        _arms(RATIOS, 2),
        base=_FASHION,
        notes=("The paper itself has FL ahead in the end, MiniBatch-SFL faster at first.",),
    ),
    _recipe(
        "12-14", "Fashion-MNIST, ResNet-18, N=100, L_c=4: non-IID ratio", _arms(RATIOS, 4), base=merged(_FASHION, _MANY)
    ),
)
