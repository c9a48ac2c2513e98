"""Small federations for the tests of split learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

import undrift as ud
from undrift.models import blocks, build
from undrift.models.layers import Dropout
from undrift.rounds.loop import Result

Pair = tuple[Tensor, Tensor]
CLASSES = 3
SPLITS = (ud.sfl_v1, ud.sfl_v2, ud.minibatch_sfl)


def clients(shape: Sequence[int], sizes: Sequence[int], seed: int = 1) -> list[Pair]:
    g = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(n, *shape, generator=g, dtype=torch.float64),
            torch.randint(0, CLASSES, (n,), generator=g),
        )
        for n in sizes
    ]


def net(*, dropout: bool = True, norm: bool = False, seed: int = 0) -> nn.Sequential:
    """4 inputs, three dense layers: small enough for every combination."""
    torch.manual_seed(seed)
    drops = (lambda: Dropout(0.25)) if dropout else nn.Identity
    norms = nn.BatchNorm1d if norm else (lambda width: nn.Identity())
    return nn.Sequential(
        nn.Linear(4, 6),
        norms(6),
        nn.Tanh(),
        drops(),
        nn.Linear(6, 5),
        norms(5),
        nn.Tanh(),
        drops(),
        nn.Linear(5, CLASSES),
    ).double()


def run(model: nn.Module, data: Any, algorithm: ud.Rule, **changes: Any) -> Result:
    settings: dict[str, Any] = {
        "rounds": 2,
        "local_epochs": 2,
        "batch_size": 4,
        "lr": 0.1,
        "seed": 3,
        "workers": 0,
    }
    return ud.simulate(model, data, algorithm, **(settings | changes))


def gap(a: Result, b: Result) -> float:
    """The largest difference between two final models, running statistics included."""
    assert a.server is not None
    assert b.server is not None
    both = [(a.server.x, b.server.x), (a.server.buffers, b.server.buffers)]
    return max(float((x - y).abs().max()) for x, y in both if len(x))


def every_cut(model: nn.Sequential) -> range:
    return range(1, len(blocks(model)))


MODELS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "cnn-emnist": ((1, 6, 6), {}),
    "cnn-cifar": ((3, 4, 4), {}),
    "cnn-adc": ((3, 4, 4), {}),
    "cnn-split": ((1, 4, 4), {}),
    "vgg11": ((3, 32, 32), {"width": 0.04}),
    "resnet8": ((3, 8, 8), {}),
    "resnet18": ((3, 8, 8), {"width": 0.25}),
    "mlp": ((5,), {"hidden": (6, 4)}),
}


def paper_model(name: str, norm: str = "batch") -> tuple[nn.Sequential, tuple[int, ...]]:
    """One of the papers' networks, at the smallest input that it takes."""
    shape, options = MODELS[name]
    if name.startswith("resnet"):
        options = options | {"norm": norm}
    return build(name, input_shape=shape, classes=CLASSES, **options).double(), shape
