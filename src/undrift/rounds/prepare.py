"""Do the parts of a run fit together? Tried on a few samples, checked, and bound to each other, before round 1."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from undrift.core.nested import Nested, call, map_leaves
from undrift.core.vector import FlatModel
from undrift.data.federation import Federation
from undrift.data.samples import Batch, Indices, Visit, labels_of
from undrift.errors import ConfigError
from undrift.rounds.plan import SMALLEST, Plan
from undrift.rounds.precision import decided
from undrift.rounds.split.binding import bind_split
from undrift.rounds.work import Work
from undrift.rules.chain import Chain, chain
from undrift.rules.rehearsal import rehearse
from undrift.rules.rule import Owns, RoundKind, Rule
from undrift.tasks import Classification, Loss, LossOnly, Task
from undrift.tasks.fit import AUTO, fit, outputs_of
from undrift.tasks.metrics import check_metrics

TRIED = 32
"""Samples that the model is tried on."""


class NotCountedWarning(UserWarning):
    """Something that users may look for is not counted, and why."""


def prepare(
    module: nn.Module,
    rule: Rule,
    federation: Federation,
    plan: Plan,
    loss: Loss | None = None,
    device: str = "cpu",
    *,
    task: str | Task = AUTO,
    metrics: Mapping[str, Any] | None = None,
) -> Work:
    """Check that the parts fit together, and bind them."""
    whole = rule if isinstance(rule, Chain) else chain(rule)
    _check_settings(whole, federation, plan)
    work = bound(module, whole, federation, plan, loss, device, task=task, metrics=metrics)
    plan = decided(plan, module, lambda: few_samples(work.federation, plan.seed), work.loss, device)
    work = replace(work, plan=plan, federation=whole.federate(work.federation, plan.seed))
    _check_monitor(work)
    return work


def bound(
    module: nn.Module,
    whole: Chain,
    federation: Federation,
    plan: Plan,
    loss: Loss | None,
    device: str,
    *,
    task: str | Task = AUTO,
    metrics: Mapping[str, Any] | None = None,
) -> Work:
    """The parts of a run, tried on a few samples and bound to the model; the federation is taken as it is."""
    check_metrics(metrics or {})
    dtype = FlatModel(module).weights.dtype
    federation = federation.changed(lambda samples: samples.cast(dtype))
    inputs, targets = few_samples(federation, plan.seed)
    _refuse_no_images(inputs, plan)
    outputs = outputs_of(module, inputs)
    if loss is None and task in (AUTO, Classification.name):
        _check_labels(outputs, federation)
    found = fit(outputs, targets, task, loss)
    statistics = changing_buffers(module, inputs)
    _refuse_single_samples(module, inputs, federation, plan)
    model = FlatModel(module, "cpu", statistics)  # rules are tried out where that costs nothing, whatever the device
    personal = whole.personal_layers(model.layout)
    if personal:
        model = FlatModel(module, "cpu", statistics, personal)
    rule = whole.bind(model.shared) if whole.kind is RoundKind.FULL else bind_split(whole, module, plan, statistics)
    rule = rule.for_clients(len(federation), plan.seed)
    _refuse_statistics(rule, model)
    rehearse(rule, model.weights[: model.shared.size], model.shared.personal)
    return Work(
        module,
        rule,
        federation,
        plan,
        found.loss,
        device,
        task=found.task,
        metrics=dict(metrics or {}),
        statistics=statistics,
        personal=personal,
    )


def _refuse_no_images(inputs: Nested, plan: Plan) -> None:
    if plan.augment and not (isinstance(inputs, Tensor) and inputs.dim() == 4):
        what = f"of shape {list(inputs.shape[1:])}" if isinstance(inputs, Tensor) else "of several parts"
        raise ConfigError(f"data.augment = 'flip-crop': samples {what} are no images (channels, height, width)")


def _refuse_statistics(rule: Chain, model: FlatModel) -> None:
    for link in rule.links:
        if link.expects and model.shared_buffers:
            raise ConfigError(
                f"algorithm {link.name!r}: the model's batch norm sends running statistics of the clients' data "
                "unprotected; model.norm = 'group' has none"
            )


def few_samples(federation: Federation, seed: int) -> Batch:
    """Some samples to try things on: of the clients, or, where they are elsewhere, of the test data."""
    for samples in (federation.pool, federation.test, federation.server):
        if samples is not None and len(samples):
            rows = np.unique(np.linspace(0, len(samples) - 1, TRIED).astype(np.int64))
            return samples.take(rows, Visit(seed))
    raise ConfigError("there is neither training nor test data to try the model on")


def _check_settings(whole: Chain, federation: Federation, plan: Plan) -> None:
    if (rate := plan.rate(plan.rounds)) < SMALLEST:
        raise ConfigError(
            f"train.schedule = {plan.schedule!r}: a rate of {rate:g} in round {plan.rounds}; "
            "a 32-bit number cannot hold it"
        )
    if federation.server is None:
        for link in whole.links:
            if link.needs_server_data:
                raise ConfigError(
                    f"algorithm {link.name!r} needs server data: give [server_data] (Python: server_data=)"
                )
        if plan.pretrain_epochs:
            raise ConfigError("train.pretrain_epochs: pre-training needs server data")
    owner = whole.owner_of(Owns.SERVER_STEP)
    if owner is not None and plan.server_lr != 1.0:
        raise ConfigError(
            f"train.server_lr = {plan.server_lr!r}: {owner.name!r} owns the server step, only 1 is allowed"
        )
    for link in whole.links:
        if link.uniform and plan.weighting != "uniform":
            raise ConfigError(
                f"train.weighting = {plan.weighting!r}: {link.name!r} counts every client alike, "
                "only 'uniform' is allowed"
            )
    if plan.cohort is not None and plan.cohort > len(federation):
        raise ConfigError(f"train.cohort = {plan.cohort}: there are only {len(federation)} clients")


def _check_labels(outputs: Tensor, federation: Federation) -> None:
    """All class labels that lie in memory, not only the few that are tried."""
    if outputs.dim() != 2 or outputs.shape[1] < 2:
        return
    classes = outputs.shape[1]
    for owner, labels in _all_labels(federation):
        wrong = labels[(labels < 0) | (labels >= classes)]
        if len(wrong):
            raise ConfigError(
                f"{owner}: label {wrong[0]}, but the model gives scores of {classes} classes (0 … {classes - 1})"
            )


def _all_labels(federation: Federation) -> Iterator[tuple[str, Indices]]:
    """Class labels and whose they are, where they are known without reading data."""
    pool = labels_of(federation.pool)
    if pool is not None and len(pool):
        yield from ((f"client {client}", pool[federation.rows(client)]) for client in range(len(federation)))
    for name in ("server", "test", "validation"):
        part = getattr(federation, name)
        found = None if part is None else labels_of(part)
        if found is not None:
            yield f"{name} data", found


def changing_buffers(module: nn.Module, inputs: Nested) -> frozenset[str]:
    """The floating buffers that training changes: running statistics, and what a forward pass in training changes."""
    trial = copy.deepcopy(module)
    if not module.training:
        trial.train()
    before = {name: buffer.clone() for name, buffer in trial.named_buffers() if buffer.is_floating_point()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            call(trial, inputs)
        except Exception:  # what the model cannot take in training is said where it is trained
            return frozenset(_norm_statistics(trial))
    after = dict(trial.named_buffers())
    changed = {name for name, old in before.items() if not torch.equal(old, after[name])}
    return frozenset(changed | _norm_statistics(trial))


def _norm_statistics(module: nn.Module) -> set[str]:
    return {
        f"{name}.{key}".removeprefix(".")
        for name, part in module.named_modules()
        if isinstance(part, _NormBase) and part.training and part.track_running_stats
        for key in ("running_mean", "running_var")
    }


def _refuse_single_samples(module: nn.Module, inputs: Nested, federation: Federation, plan: Plan) -> None:
    """Batch norm cannot train on one sample: say which client would have such a batch."""
    size = plan.batch_size
    last = federation.sizes % size if size else federation.sizes
    single = np.flatnonzero((last == 1) & ((federation.sizes == 1) | (not plan.drop_last)) | (size == 1))
    if not len(single) or _trains_on(module, map_leaves(lambda leaf: leaf[:1], inputs)):
        return
    client = int(single[0])
    raise ConfigError(
        f"client {client} has {federation.size(client)} samples, so with train.batch_size = {size} its last batch has "
        "one, which the model's batch norm cannot train on; train.drop_last = true leaves a last short batch out"
    )


def _trains_on(module: nn.Module, inputs: Nested) -> bool:
    """Whether a forward pass in training mode works; only batch norm is known to refuse a single sample."""
    if not any(isinstance(part, _NormBase) for part in module.modules()):
        return True
    trial = copy.deepcopy(module)
    if not module.training:
        trial.train()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            call(trial, inputs)
    except ValueError:
        return False
    return True


def _check_monitor(work: Work) -> None:
    if isinstance(work.task, LossOnly) and work.evaluated():
        warnings.warn(f"accuracy is not counted: {work.task.reason}", NotCountedWarning, stacklevel=4)
    if work.plan.monitor is None:
        return
    known = {"loss", *work.metrics, *_counted(work)}
    if work.monitor.metric not in known:
        raise ConfigError(f"monitor = {work.plan.monitor!r}: there are {', '.join(sorted(known))}")


def _counted(work: Work) -> set[str]:
    """The names of what a task counts."""
    inputs, targets = few_samples(work.federation, 0)
    with torch.no_grad():
        outputs = call(copy.deepcopy(work.module).eval(), inputs)
        return set(work.task.metrics(dict.fromkeys(work.task.counts(outputs, targets), (0.0, 1.0)), 0.0))
