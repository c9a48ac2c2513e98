"""The Python entry point: any module, any client data, any task, loss and metric, under any rule."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from undrift.core.schedule import Kind
from undrift.data.federation import Federation, from_clients
from undrift.data.own import samples_of
from undrift.data.samples import Collate
from undrift.experiment.bar import Bar
from undrift.experiment.engines import device_for, engine_named
from undrift.experiment.run_folder import RunFolder, stored_precision
from undrift.rounds.engine import MakeEngine
from undrift.rounds.loop import Callback, Measure, Progress, Result, Run
from undrift.rounds.plan import Plan, Precision, Train, plan_of
from undrift.rounds.prepare import prepare
from undrift.rounds.work import Work
from undrift.rules import named
from undrift.rules.rule import FedAvg, Rule
from undrift.tasks import Loss, Task

_DEFAULT = Train()


def simulate(
    model: nn.Module,
    clients: Sequence[Any] | Federation,
    algorithm: Rule | str | None = None,
    *,
    server_data: Any = None,
    test_data: Any = None,
    client_test: float = 0.0,
    collate: Collate | None = None,
    lazy: bool | None = None,
    task: str | Task = "auto",
    loss: Loss | None = None,
    metrics: Mapping[str, Any] | None = None,
    monitor: str | None = None,
    rounds: int = _DEFAULT.rounds,
    cohort: int | None = _DEFAULT.cohort,
    local_epochs: int = _DEFAULT.local_epochs,
    local_steps: int | None = _DEFAULT.local_steps,
    batch_size: int = _DEFAULT.batch_size,
    drop_last: bool = _DEFAULT.drop_last,
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
    patience: int | None = _DEFAULT.patience,
    seed: int = 0,
    engine: str | MakeEngine = "local",
    workers: int | None = None,
    precision: Precision = "fp32",
    device: str = "auto",
    measures: Sequence[Measure] = (),
    callbacks: Sequence[Callback] = (),
    progress: Progress | bool = False,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    accept: Sequence[str] = (),
) -> Result:
    """Train a model over clients under an algorithm, and return what came of it.

    Args:
        model: any module; it is not changed, the trained one is ``result.model``. Frozen parameters, parts left in
            evaluation mode and buffers that training does not change are left alone, not sent and not counted.
        clients: for each client a pair ``(inputs, targets)`` or a map-style data set (torch, Hugging Face); inputs and
            targets are tensors, or nested dictionaries and tuples of them. Or a federation from ``from_clients``.
        algorithm: a rule, or names as in ``"fedpvr+fsl"``. Default: FedAvg.
        server_data: the server's own data, for algorithms that use it; in the same forms as a client's.
        test_data: what the server model is evaluated on; in the same forms.
        client_test: share of every client's data that is held out to test on (``clients_accuracy`` and the like).
        collate: turns a list of items of a data set into ``(inputs, targets)``.
        lazy: True reads items of data sets anew at every visit (augmentation, data larger than memory); False reads
            them once. None: once, but a data set whose items differ from visit to visit is refused.
        task: ``"classification"``, ``"binary"``, ``"multilabel"``, ``"regression"``, ``"language-model"``, a task of
            your own, or ``"auto"``: classification where it fits, else only the loss is counted.
        loss: ``(outputs, targets) -> mean loss``, instead of the task's own.
        metrics: more to measure: names and torchmetrics metrics, or functions ``(outputs, targets) -> number``.
        monitor: what rise time, rounds to a target and patience look at; a leading ``-``: less is better.
        rounds: rounds of training.
        cohort: clients drawn each round. Default: all.
        local_epochs: passes over its data that a client makes in a round.
        local_steps: steps of a client in a round, instead of epochs.
        batch_size: samples in a step; 0: the whole local data set in one batch.
        drop_last: leave out a last short batch, if it is not the only one.
        lr: the clients' learning rate.
        server_lr: the server's rate, or ``"sqrt"`` for the square root of the cohort.
        weight_decay: part of every gradient.
        schedule: ``"constant"``, ``"cosine"`` or ``"multistep"``: how the rate changes over the rounds.
        lr_min: where cosine ends. Default: 1 % of ``lr``.
        milestones: multistep: rounds after which the rate decays.
        decay: multistep: the factor at a milestone.
        weighting: clients weigh by their ``"samples"``, or all alike (``"uniform"``).
        pretrain_epochs: epochs on the server's data before round 1.
        pretrain_lr: the rate of pre-training.
        eval_every: rounds from one evaluation to the next.
        patience: end after so many evaluations without a better monitored value.
        seed: fixes everything that is drawn.
        engine: ``"local"``, ``"ray"``, ``"package.module:name"``, or what makes an engine.
        workers: processes of the engine; 0: this one. Default: as many as pay off.
        precision: ``"fp32"``, ``"bf16"``, or ``"auto"``: the faster of the two (``summary["precision"]`` says which).
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` (``"cuda:1"``) or ``"mps"``.
        measures: measures of drift and the like (``undrift.measure``).
        callbacks: functions of every finished evaluation record; one that returns True ends the run there.
        progress: True shows a bar; a function is told (rounds done, rounds in all, newest evaluation).
        out: a folder for records, checkpoints and the final model.
        resume: go on with the run in ``out``; ``rounds`` may have been raised.
        accept: what may have changed since (``"data"``, ``"versions"``), although the result will be another one.

    """
    if precision == "auto" and out is not None:
        precision = stored_precision(Path(out)) or precision
    settings = {key: value for key, value in locals().items() if key in Plan.model_fields}
    plan = plan_of(settings | {"milestones": tuple(milestones)})
    federation = _federation(clients, server_data, test_data, client_test, collate, lazy, seed)
    rule = named(algorithm) if isinstance(algorithm, str) else algorithm or FedAvg()
    work = prepare(model, rule, federation, plan, loss, device_for(device), task=task, metrics=metrics)
    folder = RunFolder(Path(out), _described(work, rule), resume=resume, accept=accept) if out is not None else None
    make = engine_named(engine) if isinstance(engine, str) else engine
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(Bar()) if progress is True else progress or None
        return Run(work, make, workers, tuple(measures), folder, told, tuple(callbacks)).go()


def _federation(
    clients: Sequence[Any] | Federation,
    server: Any,
    test: Any,
    client_test: float,
    collate: Collate | None,
    lazy: bool | None,
    seed: int,
) -> Federation:
    if not isinstance(clients, Federation):
        return from_clients(
            clients, server=server, test=test, collate=collate, lazy=lazy, client_test=client_test, seed=seed
        )
    changes: dict[str, Any] = {
        name: samples_of(data, f"{name}_data", collate, lazy)
        for name, data in (("server", server), ("test", test))
        if data is not None
    }
    return replace(clients, **changes)


def _described(work: Work, rule: Rule) -> dict[str, Any]:
    """What a run from Python is recognised by when it is resumed."""
    digest = hashlib.blake2b(digest_size=16)
    for tensor in work.module.state_dict().values():
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    for part in work.federation.described():
        digest.update(part)
    digest.update(work.federation.pool.fingerprint().encode())
    loss = f"{work.loss.__module__}.{getattr(work.loss, '__qualname__', type(work.loss).__qualname__)}"
    train = {key: value for key, value in dict(work.plan).items() if value is not None}
    return {
        "api": "simulate",
        "algorithm": repr(rule),
        "task": work.task.name,
        "loss": loss,
        "start": digest.hexdigest(),
        "train": train | {"milestones": list(work.plan.milestones), "targets": list(work.plan.targets)},
    }
