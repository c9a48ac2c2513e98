"""``undrift demo``: a hard non-IID split of scikit-learn's digits, several algorithms side by side."""

from __future__ import annotations

from typing import Any

import typer

from undrift.cli.compare import compare_runs
from undrift.cli.options import Out, Quiet, new_folder
from undrift.experiment.config import parse
from undrift.experiment.run_folder import check_output

SEEDS = 3
ALGORITHMS = ("fedavg", "fedprox", "scaffold", "fedpvr", "feddyn", "fedadc", "fsl", "fedpvr+fsl")
CONFIG: dict[str, Any] = {
    "data": {"name": "digits"},
    "partition": {"scheme": "classes", "clients": 20, "classes": 1},
    "server_data": {"source": "balanced", "size": 50},
    "model": {"name": "mlp", "hidden": [64]},
    "algorithm": {
        "name": "fedavg",
        "fedprox": {"mu": 0.1},
        "fedpvr": {"layers": 1},
        "feddyn": {"alpha": 0.1},
        "fedadc": {"beta": 0.7},
    },
    "train": {"rounds": 40, "cohort": 5, "local_epochs": 2, "batch_size": 10, "lr": 0.05},
    "measure": {"drift": True, "clients": True},
}


def demo(out: Out = None, quiet: Quiet = False) -> None:
    """A non-IID federation on real data, several algorithms side by side, in under a minute.

    Example: undrift demo
    """
    folder = out or new_folder("demo")
    check_output(folder)
    settings = parse(CONFIG)
    typer.echo(
        "scikit-learn's handwritten digits at 20 clients, each with 1 of the 10 classes;\n"
        "5 clients take part in a round. "
        f"{len(ALGORITHMS)} algorithms, {settings.train.rounds} rounds each, {SEEDS} seeds."
    )
    compare_runs(settings, ALGORITHMS, SEEDS, [()], folder, None, quiet)
