"""Which task it is, and whether model, data and loss fit it: found out on a few samples, before round 1."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from undrift.core.nested import Nested, call, shape_of
from undrift.core.plugins import own, place_of
from undrift.core.trouble import describe
from undrift.core.words import unknown
from undrift.errors import ConfigError
from undrift.tasks.known import TASKS, Classification, LossOnly
from undrift.tasks.task import Loss, Task

AUTO = "auto"


@dataclass(frozen=True)
class Fit:
    """The task and the loss of a run."""

    task: Task
    loss: Loss


def task_of(task: str | Task) -> Task | None:
    """The task of this name; None: to be found out."""
    if not isinstance(task, str):
        return task
    if task == AUTO:
        return None
    if task in TASKS:
        return TASKS[task]()
    if place_of(task) is None:
        raise ConfigError(unknown("task", task, (AUTO, *TASKS)))
    found = own(task, "task.name")
    made = found() if isinstance(found, type) else found
    if not isinstance(made, Task):
        raise ConfigError(f"task.name = {task!r}: {type(made).__name__} is no undrift.tasks.Task")
    return made


def fit(outputs: Tensor, targets: Nested, task: str | Task, loss: Loss | None) -> Fit:
    """Task and loss for the scores of a few samples; refuse what does not fit, with the shapes."""
    chosen = task_of(task) or _found(outputs, targets, loss)
    if reason := chosen.misfit(outputs, targets):
        raise ConfigError(
            f"task = {chosen.name!r}: {reason}; the model gives {shape_of(outputs)}, targets are {shape_of(targets)}"
        )
    if isinstance(chosen, LossOnly) and loss is None:
        raise ConfigError(
            f"no classification: {chosen.reason}; give task= ({', '.join(TASKS)}) or loss= (TOML: task.name)"
        )
    used = loss or chosen.loss
    _try_loss(used, outputs, targets)
    return Fit(chosen, used)


def outputs_of(module: nn.Module, inputs: Nested) -> Tensor:
    """The starting model's scores, in evaluation mode; the module itself is not touched."""
    trial = copy.deepcopy(module).eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            out = call(trial, inputs)
    except Exception as error:
        raise ConfigError(f"the model does not take inputs {shape_of(inputs)}: {describe(error)}") from None
    return out.float() if out.dtype == torch.bfloat16 else out


def _found(outputs: Tensor, targets: Nested, loss: Loss | None) -> Task:
    """Classification, where outputs and targets look like it and the loss treats outputs as scores of classes."""
    plain = Classification()
    if reason := plain.misfit(outputs, targets):
        return LossOnly(f"outputs {shape_of(outputs)} and targets {shape_of(targets)} do not fit ({reason})")
    if loss is None or loss is cross_entropy or _scores_classes(loss, outputs, targets):
        return plain
    return LossOnly(f"the loss does not treat the outputs {shape_of(outputs)} as scores of classes")


def _scores_classes(loss: Loss, outputs: Tensor, targets: Tensor) -> bool:
    """Whether the loss pulls up the right class most (for nine samples of ten), and every column counts in it."""
    scores = outputs.detach().clone().requires_grad_()
    try:
        (slope,) = torch.autograd.grad(loss(scores, targets), [scores])
    except Exception:
        return False
    if outputs.dim() != 2:
        return True
    right = slope.gather(1, targets[:, None])
    others = slope.scatter(1, targets[:, None], float("inf")).amin(1, keepdim=True)
    return bool((right <= others).double().mean() >= 0.9 and (slope != 0).any(0).all())


def _try_loss(loss: Loss, outputs: Tensor, targets: Nested) -> None:
    try:
        value = loss(outputs, targets)
    except Exception as error:
        raise ConfigError(
            f"the loss does not take outputs {shape_of(outputs)} and targets {shape_of(targets)}: {describe(error)}"
        ) from None
    if not isinstance(value, Tensor) or value.dim() != 0:
        found = shape_of(value) if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(f"the loss must give one number, the mean over a batch, not {found}")
