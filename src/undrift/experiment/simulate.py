"""The Python entry point: any module, any client data, any loss, under any rule."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import Dataset

from undrift.core.schedule import Kind
from undrift.data.federation import Federation, Pair, from_clients
from undrift.engines.auto import engine_for
from undrift.experiment.run_folder import RunFolder
from undrift.rounds.loop import Measure, Progress, Result, Run
from undrift.rounds.plan import Precision, Train, plan_of
from undrift.rounds.prepare import prepare
from undrift.rounds.worker import Loss, Work
from undrift.rules.rule import FedAvg, Rule

_DEFAULT = Train()


def simulate(
    model: nn.Module,
    clients: Sequence[Pair | Dataset[Pair]] | Federation,
    algorithm: Rule | None = None,
    *,
    server_data: Pair | None = None,
    test_data: Pair | None = None,
    rounds: int = _DEFAULT.rounds,
    cohort: int | None = _DEFAULT.cohort,
    local_epochs: int = _DEFAULT.local_epochs,
    local_steps: int | None = _DEFAULT.local_steps,
    batch_size: int = _DEFAULT.batch_size,
    lr: float = _DEFAULT.lr,
    server_lr: float | Literal["sqrt"] = _DEFAULT.server_lr,
    weight_decay: float = _DEFAULT.weight_decay,
    schedule: Kind = _DEFAULT.schedule,
    lr_min: float | None = _DEFAULT.lr_min,
    milestones: Sequence[int] = _DEFAULT.milestones,
    decay: float = _DEFAULT.decay,
    weighting: Literal["samples", "uniform"] = _DEFAULT.weighting,
    pretrain_epochs: int = _DEFAULT.pretrain_epochs,
    pretrain_lr: float = _DEFAULT.pretrain_lr,
    eval_every: int = _DEFAULT.eval_every,
    loss: Loss = nn.functional.cross_entropy,
    seed: int = 0,
    workers: int | None = None,
    precision: Precision = "fp32",
    device: str = "cpu",
    measures: Sequence[Measure] = (),
    progress: Progress | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> Result:
    """Train ``model`` over ``clients`` under ``algorithm`` (default: FedAvg) and return what came of it.

    ``clients`` is one (x, y) tensor pair or torch data set for each client. The given module is not changed;
    the trained one is ``result.model``. ``workers``: processes (0: this one, None: as many as pay off).
    ``out``: a folder for records, checkpoints and the final model; ``resume`` goes on with the run in it.
    """
    federation = clients if isinstance(clients, Federation) else from_clients(clients)
    federation = replace(
        federation,
        server=_tensors(server_data) or federation.server,
        test=_tensors(test_data) or federation.test,
    )
    plan = plan_of(
        {
            "rounds": rounds,
            "lr": lr,
            "schedule": schedule,
            "lr_min": lr_min,
            "milestones": tuple(milestones),
            "decay": decay,
            "cohort": cohort,
            "local_epochs": local_epochs,
            "local_steps": local_steps,
            "batch_size": batch_size,
            "server_lr": server_lr,
            "weight_decay": weight_decay,
            "weighting": weighting,
            "eval_every": eval_every,
            "pretrain_epochs": pretrain_epochs,
            "pretrain_lr": pretrain_lr,
            "seed": seed,
            "precision": precision,
        }
    )
    rule = algorithm or FedAvg()
    work = prepare(model, rule, federation, plan, loss, device)
    folder = RunFolder(Path(out), _described(work, rule), resume=resume) if out is not None else None
    return Run(work, engine_for, workers, tuple(measures), folder, progress).go()


def _tensors(pair: Pair | None) -> Pair | None:
    return None if pair is None else (torch.as_tensor(pair[0]), torch.as_tensor(pair[1]))


def _described(work: Work, rule: Rule) -> dict[str, Any]:
    """What a run from Python is recognised by when it is resumed."""
    federation, digest = work.federation, hashlib.sha256()
    for tensor in (*work.module.state_dict().values(), federation.y, federation.x.sum(dtype=torch.float64)):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    digest.update(federation.indices.tobytes() + federation.offsets.tobytes())
    loss = f"{work.loss.__module__}.{getattr(work.loss, '__qualname__', type(work.loss).__qualname__)}"
    return {
        "api": "simulate",
        "algorithm": repr(rule),
        "plan": repr(work.plan),
        "loss": loss,
        "start": digest.hexdigest(),
    }
