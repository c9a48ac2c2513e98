"""The work on undrift's own engine, through the public ``simulate``."""

from __future__ import annotations

import numpy as np
import torch

import undrift
from peers import common
from undrift import models
from undrift.data.federation import Federation, federation
from undrift.data.samples import InMemory
from undrift.rules import RULES


def clients_of(work: dict) -> Federation:
    """The clients and their data; nothing else keeps the arrays as they were read."""
    pool, users, each = InMemory(*common.data(work, "train")), work["users"], work["per_user"]
    if users * each <= len(pool):
        return federation(pool, [np.arange(user * each, (user + 1) * each) for user in range(users)])
    rows = np.random.default_rng(1).integers(0, len(pool), users * each)  # growth: a large population shares one pool
    return Federation(pool, rows, np.arange(0, users * each + 1, each))


def _server_data(work: dict) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = common.data(work, "test")
    return x[: work["server_samples"]].clone(), y[: work["server_samples"]].clone()


def main() -> None:
    work = common.spec()
    options = {"norm": "group"} if work["model"].startswith("resnet") else work.get("options", {})
    module = models.build(
        work["model"], input_shape=tuple(work["shape"]), classes=work["classes"], seed=work["seed"], **options
    )
    clock = common.Clock(work["rounds"])
    # An evaluation goes on during the next round. One more round, and every turn has one, as the others' turns have:
    # else the last one would have two, that of the turn before and its own.
    rounds = work["rounds"] + bool(work["eval_every"])
    result = undrift.simulate(
        module,
        clients_of(work),
        RULES[work["algorithm"]](),
        test_data=common.data(work, "test") if work["eval_every"] else None,
        server_data=_server_data(work) if work["algorithm"] == "fsl" else None,
        rounds=rounds,
        cohort=work["cohort"],
        batch_size=work["batch"],
        lr=work["lr"],
        eval_every=work["eval_every"] or rounds,
        seed=work["seed"],
        workers=work["workers"],
        precision=work["precision"],
        progress=lambda round, *_: clock.at(round),
    )
    torch.set_num_threads(1)
    common.report(work, clock, result.model, {"undrift": undrift.__version__})


if __name__ == "__main__":
    main()
