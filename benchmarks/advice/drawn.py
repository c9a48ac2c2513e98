"""Random federations that the advice learns from: data, partition, participation, length, rate and server data drawn.

None of them is one of `federations.py`, which the advice is judged by.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from federations import CNN, DEEP, DIGITS, LINEAR, MLP, Settings

NUMBERS = (*range(19), *range(48, 59))
"""Of the federations that are learnt from."""
SIZES = {"digits": (600, 1400), "mnist": (1200, 3500), "fashion-mnist": (1200, 3500), "emnist": (2000, 4500)}
SIZES |= {"cifar10": (1200, 2500), "synthetic": (1200, 3000)}
CLASSES = {"emnist": 47}


def drawn(number: int) -> tuple[Settings, Any]:
    """Settings and server data of one federation, from its number alone."""
    rng = np.random.default_rng([20261, number])
    name = str(
        rng.choice(["digits", "mnist", "fashion-mnist", "fashion-mnist", "emnist", "emnist", "cifar10", "synthetic"])
    )
    samples = int(rng.integers(*SIZES[name]))
    clients = int(rng.choice([8, 10, 15, 20, 30, 45, 60, 100]))
    clients = min(clients, samples // 25)
    share = float(rng.choice([1.0, 0.5, 0.3, 0.2, 0.1, 0.05]))
    cohort = max(2, round(share * clients))
    model = {"cifar10": CNN, "synthetic": LINEAR if rng.random() < 0.5 else MLP}.get(
        name, MLP if rng.random() < 0.6 else DEEP
    )
    own: Settings = {"scheme": "given", "clients": clients} if name == "synthetic" else _partition(name, clients, rng)
    settings: Settings = {
        "data": _data(name, samples, rng),
        "partition": own | {"seed": 7},
        "model": model,
        "train": {
            "rounds": int(rng.choice([12, 15, 20, 25, 30, 40, 50, 60])),
            **({} if cohort >= clients else {"cohort": cohort}),
            "local_epochs": int(rng.choice([1, 1, 1, 2])),
            "batch_size": int(rng.choice([10, 20, 20, 32, 50])),
            "lr": float(rng.choice([0.01, 0.02, 0.05, 0.05, 0.1])),
            "eval_every": 1,
        },
        "engine": {"workers": 0},
    }
    return settings, _server(name, rng)


def _data(name: str, samples: int, rng: np.random.Generator) -> Settings:
    if name == "digits":
        return DIGITS | ({"limit": samples} if samples < 1300 else {})
    if name == "synthetic":
        return {
            "name": name,
            "samples": samples,
            "features": 40,
            "heterogeneity": float(rng.choice([0.3, 1.0, 2.0, 4.0])),
        }
    return {"name": name, "limit": samples} | ({"split": "sub47"} if name == "emnist" else {})


def _partition(name: str, clients: int, rng: np.random.Generator) -> Settings:
    scheme = str(rng.choice(["dirichlet", "dirichlet", "classes", "classes", "shards", "ratio", "iid"]))
    classes = CLASSES.get(name, 10)
    schemes: dict[str, Settings] = {
        "dirichlet": {"alpha": float(rng.choice([0.05, 0.1, 0.2, 0.3, 0.5, 1.0])), "min_samples": 4},
        "classes": {"classes": int(rng.integers(1, 6)) if classes == 10 else int(rng.integers(3, 12))},
        "shards": {"shards": int(rng.integers(1, 4))},
        "ratio": {"ratio": float(rng.choice([0.5, 0.7, 0.8, 0.9, 0.95]))},
        "iid": {},
    }
    return {"scheme": scheme, "clients": clients, **schemes[scheme]}


def _server(name: str, rng: np.random.Generator) -> Any:
    kind = str(rng.choice(["none", "good", "bad"], p=[0.38, 0.5, 0.12]))
    if kind == "none":
        return None
    if kind == "bad" and name != "synthetic":
        return str(rng.choice(["shuffled", "narrow"]))
    source = "iid" if name == "synthetic" else str(rng.choice(["balanced", "balanced", "iid"]))
    size = int(rng.choice([30, 50, 80, 100, 150, 250]))
    return {"source": source, "size": -(-size // 47) * 47 if name == "emnist" and source == "balanced" else size}
