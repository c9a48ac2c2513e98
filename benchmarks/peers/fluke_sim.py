"""The work on fluke: one process with some threads."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import torch
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver

from peers import common


class Tick(FederationObserver):
    """Stamps the ends of rounds."""

    def __init__(self, clock: common.Clock) -> None:
        self.clock = clock

    def end_round(self, round: int) -> None:
        """A round has ended."""
        self.clock.at(round)


class Clients:
    """Gives every client its samples, where fluke would split a data set."""

    def __init__(self, work: dict) -> None:
        self.work = work

    def assign(self, clients: int, batch_size: int) -> tuple:
        """Training data of each client; there are no test data."""
        x, y = common.data(self.work, "train")
        own = [common.rows(self.work, client) for client in range(clients)]
        loaders = [
            FastDataLoader(x[s], y[s], num_labels=self.work["classes"], batch_size=batch_size, shuffle=True)
            for s in own
        ]
        return (loaders, [None] * clients), None


def main() -> None:
    """Train and report."""
    work = common.spec()
    torch.set_num_threads(work["threads"])
    np.random.seed(work["seed"])
    clock, net = common.Clock(work["rounds"]), common.textbook(work)
    settings = FlukeENV()
    settings.set_evaluator(ClassificationEval(eval_every=work["rounds"] + 1, n_classes=work["classes"]))
    settings.set_eval_cfg(task="classification", eval_every=work["rounds"] + 1, server=False, locals=False)
    algorithm = FedAVG(
        work["users"],
        Clients(work),
        DDict(
            model=net,
            client=DDict(
                batch_size=work["batch"],
                local_epochs=1,
                loss="CrossEntropyLoss",
                optimizer=DDict(name="SGD", lr=work["lr"]),
                scheduler=DDict(name="StepLR", step_size=1, gamma=1),
                persistency=False,
            ),
            server=DDict(weighted=True),
        ),
    )
    algorithm.set_callbacks([Tick(clock)])
    algorithm.run(work["rounds"], work["cohort"] / work["users"])
    common.report(work, clock, algorithm.server.model, {"fluke-fl": version("fluke-fl")})


if __name__ == "__main__":
    main()
