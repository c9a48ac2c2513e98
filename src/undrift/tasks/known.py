"""The tasks that have a name: what their outputs and targets look like, their loss, what is counted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from undrift.core.nested import Nested
from undrift.tasks.task import Sums, Task

IGNORED = -100
"""A target that is not counted (PyTorch's own number)."""


def whole(targets: Nested) -> bool:
    """Whether targets are a tensor of whole numbers."""
    return isinstance(targets, Tensor) and not targets.is_floating_point() and targets.dtype != torch.bool


def known(targets: Tensor) -> Tensor:
    """How many targets are counted."""
    return (targets != IGNORED).sum()


def zero_or_one(targets: Tensor) -> bool:
    """Whether all targets are 0 or 1, of any type."""
    return targets.dtype == torch.bool or bool(((targets == 0) | (targets == 1)).all())


class Classification(Task):
    """One of C classes: outputs ``[B, C]``, whole targets ``[B]`` (or pixels: ``[B, C, H, W]``, ``[B, H, W]``)."""

    name = "classification"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if targets.dim() == 1:
            return cross_entropy(outputs, targets)
        total = cross_entropy(outputs, targets, ignore_index=IGNORED, reduction="sum")
        return total / known(targets).clamp(min=1)

    def misfit(self, outputs: Tensor, targets: Nested) -> str | None:
        if not whole(targets) or outputs.dim() < 2 or outputs.shape[1] < 2:
            return "outputs [B, C] with C > 1 and whole targets [B] are needed"
        if outputs.dim() == 3 or outputs.shape[:1] + outputs.shape[2:] != targets.shape:
            return "outputs [B, C] and targets [B] (or [B, C, H, W] and [B, H, W]) are needed"
        used = targets if targets.dim() == 1 else targets[targets != IGNORED]
        if len(used) and not 0 <= int(used.min()) <= int(used.max()) < outputs.shape[1]:
            return f"targets must be classes 0 … {outputs.shape[1] - 1}, they go from {used.min()} to {used.max()}"
        return None

    def size(self, targets: Tensor) -> Any:
        return len(targets) if targets.dim() == 1 else known(targets)

    def counts(self, outputs: Tensor, targets: Tensor) -> Sums:
        return {"accuracy": ((outputs.argmax(1) == targets).sum(), self.size(targets))}


class Binary(Task):
    """Yes or no: outputs ``[B]`` or ``[B, 1]``, targets 0 or 1 of any type, ``[B]`` or ``[B, 1]``."""

    name = "binary"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(outputs.flatten(), targets.flatten().to(outputs.dtype))

    def misfit(self, outputs: Tensor, targets: Nested) -> str | None:
        if not isinstance(targets, Tensor) or not all(_one_each(tensor) for tensor in (outputs, targets)):
            return "outputs and targets [B] or [B, 1] are needed"
        return None if zero_or_one(targets) else "targets must be 0 or 1"

    def counts(self, outputs: Tensor, targets: Tensor) -> Sums:
        right = (outputs.flatten() > 0) == (targets.flatten() > 0.5)
        return {"accuracy": (right.sum(), right.numel())}


def _one_each(tensor: Tensor) -> bool:
    return tensor.dim() == 1 or (tensor.dim() == 2 and tensor.shape[1] == 1)


class Multilabel(Task):
    """Several labels, each yes or no: outputs and targets ``[B, L]``."""

    name = "multilabel"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))

    def misfit(self, outputs: Tensor, targets: Nested) -> str | None:
        if not isinstance(targets, Tensor) or outputs.dim() != 2 or outputs.shape != targets.shape:
            return "outputs and targets [B, L] are needed"
        return None if zero_or_one(targets) else "targets must be 0 or 1"

    def counts(self, outputs: Tensor, targets: Tensor) -> Sums:
        right = (outputs > 0) == (targets > 0.5)
        return {"accuracy": (right.sum(), right.numel()), "exact": (right.all(1).sum(), len(right))}


class Regression(Task):
    """Numbers: floating outputs and targets of the same shape (``[B, 1]`` and ``[B]`` will do)."""

    name = "regression"
    monitor = "loss"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return mse_loss(outputs.flatten(), targets.flatten())

    def misfit(self, outputs: Tensor, targets: Nested) -> str | None:
        if not isinstance(targets, Tensor) or not targets.is_floating_point():
            return "floating targets are needed"
        alike = outputs.shape == targets.shape or (
            _one_each(outputs) and _one_each(targets) and len(outputs) == len(targets)
        )
        return None if alike else "outputs and targets of the same shape are needed"

    def counts(self, outputs: Tensor, targets: Tensor) -> Sums:
        off = (outputs.flatten() - targets.flatten()).double()
        return {"mae": (off.abs().sum(), off.numel()), "rmse": (off.square().sum(), off.numel())}

    def metrics(self, sums: dict[str, tuple[float, float]], loss: float) -> dict[str, float]:
        found = super().metrics(sums, loss)
        return found | ({"rmse": math.sqrt(found["rmse"])} if "rmse" in found else {})


class LanguageModel(Task):
    """The next token: outputs ``[B, T, V]``, whole targets ``[B, T]``, of which -100 is ignored."""

    name = "language-model"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        total = cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
        return total / known(targets).clamp(min=1)

    def misfit(self, outputs: Tensor, targets: Nested) -> str | None:
        if not whole(targets) or outputs.dim() != 3 or outputs.shape[:2] != targets.shape:
            return "outputs [B, T, V] and whole targets [B, T] are needed"
        used = targets[targets != IGNORED]
        if len(used) and not 0 <= int(used.min()) <= int(used.max()) < outputs.shape[2]:
            return f"targets must be tokens 0 … {outputs.shape[2] - 1} or {IGNORED}"
        return None

    def size(self, targets: Tensor) -> Tensor:
        return known(targets)

    def counts(self, outputs: Tensor, targets: Tensor) -> Sums:
        return {"accuracy": ((outputs.argmax(2) == targets).sum(), known(targets))}

    def metrics(self, sums: dict[str, tuple[float, float]], loss: float) -> dict[str, float]:
        perplexity = math.exp(loss) if loss < 700 else math.inf
        return super().metrics(sums, loss) | {"perplexity": perplexity}


@dataclass
class LossOnly(Task):
    """Anything else: the loss is counted, nothing more, and ``reason`` says why."""

    reason: str = ""
    name = "auto"
    monitor = "loss"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(outputs, targets)


TASKS: dict[str, type[Task]] = {
    task.name: task for task in (Classification, Binary, Multilabel, Regression, LanguageModel)
}
