"""The demonstration: a hard non-IID split of scikit-learn's digits."""

from __future__ import annotations

from typing import Any

SEEDS = 3
ALGORITHMS = ("fedavg", "fedprox", "scaffold", "fedpvr", "feddyn", "fedadc", "fsl", "fedpvr+fsl")
CONFIG: dict[str, Any] = {
    "data": {"name": "digits"},
    "partition": {"scheme": "classes", "clients": 20, "classes": 1},
    "server_data": {"source": "balanced", "size": 50},
    "model": {"name": "mlp", "hidden": [64]},
    "algorithm": {
        "name": "fedavg", "fedprox": {"mu": 0.1}, "fedpvr": {"layers": 1}, "feddyn": {"alpha": 0.1},
        "fedadc": {"beta": 0.7},
    },
    "train": {"rounds": 40, "cohort": 5, "local_epochs": 2, "batch_size": 10, "lr": 0.05},
}  # fmt: skip
