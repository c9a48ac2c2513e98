"""Two dozen small federations that advice is judged on: every second one is for tuning, the others are held out.

``server = "shuffled"`` and ``"narrow"`` stand for misleading server data, which are written to a file: labels that have
nothing to do with the inputs, and samples of three classes only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from undrift.data import server_indices
from undrift.experiment.config import Config, parse
from undrift.experiment.from_config import data_of, parts_of

Settings = dict[str, Any]
HERE = Path(__file__).parent
MLP: Settings = {"name": "mlp", "hidden": [64]}
DEEP: Settings = {"name": "mlp", "hidden": [64, 64]}
CNN: Settings = {"name": "small_models:small_cnn"}
LINEAR: Settings = {"name": "linear"}


def _one(
    data: Settings, partition: Settings, train: Settings, model: Settings = MLP, server: Any = None
) -> tuple[Settings, Any]:
    settings = {
        "data": data,
        "partition": partition | {"seed": 7},
        "model": model,
        "train": {"batch_size": 20, "lr": 0.05, "eval_every": 2} | train,
        "engine": {"workers": 0},
    }
    return settings, server


def _mnist(limit: int, name: str = "mnist") -> Settings:
    return {"name": name, "limit": limit}


def _fashion(limit: int) -> Settings:
    return _mnist(limit, "fashion-mnist")


def _emnist(limit: int) -> Settings:
    return {"name": "emnist", "split": "sub47", "limit": limit}


def _cifar(limit: int) -> Settings:
    return _mnist(limit, "cifar10")


def _synthetic(heterogeneity: float) -> Settings:
    return {"name": "synthetic", "samples": 3000, "features": 40, "heterogeneity": heterogeneity}


def _split(scheme: str, clients: int, **own: Any) -> Settings:
    return {"scheme": scheme, "clients": clients, **own}


def _rounds(rounds: int, cohort: int | None = None, **more: Any) -> Settings:
    return {"rounds": rounds, **({"cohort": cohort} if cohort else {}), **more}


def _server(source: str, size: int) -> Settings:
    return {"source": source, "size": size}


DIGITS: Settings = {"name": "digits"}
FEDERATIONS: dict[str, tuple[Settings, Any]] = {
    # tuned on                                     the next one: held out
    "digits-classes-2": _one(
        DIGITS, _split("classes", 20, classes=2), _rounds(30, 5, batch_size=10), MLP, _server("balanced", 40)
    ),
    "digits-dirichlet-.1": _one(DIGITS, _split("dirichlet", 15, alpha=0.1), _rounds(25, 8, batch_size=10)),
    "digits-iid": _one(DIGITS, _split("iid", 10), _rounds(15)),
    "digits-shards-2": _one(
        DIGITS, _split("shards", 30, shards=2), _rounds(40, 6, batch_size=10), DEEP, _server("iid", 60)
    ),
    "mnist-dirichlet-.05": _one(
        _mnist(3000), _split("dirichlet", 20, alpha=0.05), _rounds(30, 10), MLP, _server("balanced", 50)
    ),
    "mnist-classes-1": _one(
        _mnist(4000), _split("classes", 40, classes=1), _rounds(40, 8), MLP, _server("balanced", 100)
    ),
    "mnist-classes-3": _one(_mnist(4000), _split("classes", 100, classes=3), _rounds(50, 5)),
    "mnist-ratio-.8": _one(_mnist(3000), _split("ratio", 10, ratio=0.8), _rounds(20), DEEP),
    "fashion-classes-2": _one(
        _fashion(4000), _split("classes", 50, classes=2), _rounds(50, 5), MLP, _server("balanced", 80)
    ),
    "fashion-dirichlet-.2": _one(
        _fashion(4000), _split("dirichlet", 30, alpha=0.2), _rounds(40, 6, lr=0.02), DEEP, _server("iid", 60)
    ),
    "fashion-iid-server": _one(_fashion(3000), _split("iid", 20), _rounds(25, 10), MLP, _server("balanced", 50)),
    "fashion-iid": _one(_fashion(3000), _split("iid", 10), _rounds(15, lr=0.03)),
    "fashion-shards-shuffled": _one(_fashion(3000), _split("shards", 50, shards=2), _rounds(40, 10), MLP, "shuffled"),
    "fashion-classes-3-of-100": _one(
        _fashion(4000), _split("classes", 100, classes=3), _rounds(60, 2), MLP, _server("balanced", 150)
    ),
    "emnist-classes-6": _one(
        _emnist(5000), _split("classes", 40, classes=6), _rounds(40, 10), MLP, _server("balanced", 188)
    ),
    "emnist-dirichlet-.3": _one(
        _emnist(5000), _split("dirichlet", 30, alpha=0.3), _rounds(40, 8), MLP, _server("balanced", 94)
    ),
    "emnist-dirichlet-.1": _one(_emnist(5000), _split("dirichlet", 50, alpha=0.1), _rounds(40, 10)),
    "emnist-classes-8": _one(_emnist(5000), _split("classes", 60, classes=8), _rounds(50, 8, lr=0.1), DEEP),
    "cifar-ratio-.7": _one(_cifar(3000), _split("ratio", 10, ratio=0.7), _rounds(15), CNN),
    "cifar-classes-2": _one(
        _cifar(3000), _split("classes", 20, classes=2), _rounds(25, 8), CNN, _server("balanced", 100)
    ),
    "cifar-dirichlet-.3": _one(
        _cifar(3000), _split("dirichlet", 20, alpha=0.3), _rounds(25, 5), CNN, _server("balanced", 60)
    ),
    "cifar-dirichlet-.1-narrow": _one(_cifar(3000), _split("dirichlet", 10, alpha=0.1), _rounds(15), CNN, "narrow"),
    "synthetic-1": _one(_synthetic(1.0), _split("given", 30), _rounds(40, 10, lr=0.02), LINEAR),
    "synthetic-2": _one(_synthetic(2.0), _split("given", 50), _rounds(50, 5, lr=0.02), MLP, _server("iid", 60)),
}
TUNED = list(FEDERATIONS)[0::2]
HELD_OUT = list(FEDERATIONS)[1::2]


def config_of(name: str, folder: Path) -> Config:
    """A federation's configuration; ``folder`` gets the file of misleading server data, where it has such."""
    return resolved(name, *FEDERATIONS[name], folder)


def resolved(name: str, settings: Settings, server: Any, folder: Path) -> Config:
    """The configuration of settings with their server data."""
    settings = settings | {"modules": str(HERE)}
    if isinstance(server, dict):
        settings = settings | {"server_data": server}
    elif server:
        path = folder / f"{name}.npz"
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _mislead(parse(settings), server, path)
        settings = settings | {"server_data": {"source": "file", "path": str(path)}}
    return parse(settings)


def _mislead(config: Config, kind: str, path: Path, size: int = 60) -> None:
    data, rng = data_of(config), np.random.default_rng(3)
    labels = data.y_train.numpy()
    drawn = server_indices("iid", labels, parts_of(config, data), 3, size=size * 5)
    if kind == "narrow":
        drawn = drawn[labels[drawn] < 3]
    drawn = drawn[:size]
    told = rng.permutation(labels[drawn]) if kind == "shuffled" else labels[drawn]
    np.savez(path, x=data.x_train.numpy()[drawn], y=told)
