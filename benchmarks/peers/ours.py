"""The work on undrift's own engine, through the public ``simulate``."""

from __future__ import annotations

import numpy as np
import torch

import undrift
from peers import common
from undrift import models
from undrift.data.federation import federation
from undrift.data.samples import InMemory
from undrift.rules import RULES


def _server_data(work: dict) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = common.data(work, "test")
    return x[: work["server_samples"]].clone(), y[: work["server_samples"]].clone()


def main() -> None:
    work = common.spec()
    x, y = common.data(work, "train")
    users, each = work["users"], work["per_user"]
    if users * each <= len(y):
        parts = [np.arange(user * each, (user + 1) * each) for user in range(users)]
    else:  # growth: a large population draws its samples from one pool
        parts = list(np.random.default_rng(1).integers(0, len(y), (users, each)))
    options = {"norm": "group"} if work["model"].startswith("resnet") else work.get("options", {})
    module = models.build(
        work["model"], input_shape=tuple(work["shape"]), classes=work["classes"], seed=work["seed"], **options
    )
    clock = common.Clock(work["rounds"])
    result = undrift.simulate(
        module, federation(InMemory(x, y), parts), RULES[work["algorithm"]](),
        test_data=common.data(work, "test") if work["eval_every"] else None,
        server_data=_server_data(work) if work["algorithm"] == "fsl" else None,
        rounds=work["rounds"], cohort=work["cohort"], batch_size=work["batch"], lr=work["lr"],
        eval_every=work["eval_every"] or work["rounds"], seed=work["seed"], workers=work["workers"],
        precision=work["precision"], progress=lambda round, *_: clock.at(round),
    )  # fmt: skip
    torch.set_num_threads(1)
    common.report(work, clock, result.model, {"undrift": undrift.__version__})


if __name__ == "__main__":
    main()
