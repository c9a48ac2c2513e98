"""In which precision forward and backward passes are made: bf16 pays off on some processors only.

Whether it does is found from what the processor announces, and confirmed by timing a few steps of the model at hand.
What is timed is the time of this thread, so that a busy machine does not decide.
"""

from __future__ import annotations

import contextlib
import copy
import time
import warnings
from collections.abc import Callable

import torch
from torch import nn

from undrift.core.machine import processor
from undrift.core.nested import call, map_leaves
from undrift.core.numerics import settled
from undrift.core.processor import announces_bf16
from undrift.data.samples import Batch
from undrift.errors import RunWarning
from undrift.rounds.plan import Plan, Precision
from undrift.tasks import Loss

_TURNS = 5
"""Steps that are timed in each precision, after one that is not."""
_ENOUGH = 0.1
"""Seconds after which no further turn is taken."""
_FASTER, _SLOWER = 0.95, 1.10
"""bf16 counts as faster below the first share of fp32's time, and as slower above the second."""


class SlowPrecisionWarning(RunWarning):
    """The precision that was asked for is slower than another one here."""


def decided(plan: Plan, module: nn.Module, batch: Callable[[], Batch], loss: Loss, device: str) -> Plan:
    """The plan with the precision that is used; says so where an explicit bf16 is slower than fp32 here."""
    wanted = plan.precision
    if wanted == "fp32" or device == "meta":
        return plan
    if wanted == "auto" and device == "cpu" and not announces_bf16():
        return plan.with_(precision="fp32")
    ratio = bf16_over_fp32(module, _cut(batch(), plan.batch_size), loss, device)
    if wanted == "auto":
        return plan.with_(precision="bf16" if ratio < _FASTER else "fp32")
    if ratio > _SLOWER:
        where = processor() if device == "cpu" else device
        warnings.warn(
            f"precision = 'bf16': a step takes {ratio:.1f} times as long as in fp32 on {where}; "
            "precision = 'auto' takes the faster one",
            SlowPrecisionWarning,
            stacklevel=3,
        )
    return plan


def bf16_over_fp32(module: nn.Module, batch: Batch, loss: Loss, device: str) -> float:
    """The time of a training step in bf16, as a multiple of its time in fp32."""
    module = copy.deepcopy(module).to(device).train()
    inputs, targets = (map_leaves(lambda leaf: leaf.to(device), part) for part in batch)
    best: dict[Precision, float] = {"fp32": float("inf"), "bf16": float("inf")}
    with settled(), torch.random.fork_rng(devices=[]):
        end = time.perf_counter() + _ENOUGH
        for turn in range(_TURNS + 1):
            for precision in best:
                taken = _timed(lambda: _step(module, (inputs, targets), loss, precision, device))  # noqa: B023
                best[precision] = min(best[precision], taken) if turn else best[precision]
            if turn and time.perf_counter() > end:
                break
    return best["bf16"] / best["fp32"]


def autocast(precision: Precision, device: str) -> contextlib.AbstractContextManager[object]:
    """What forward passes in a precision are made under."""
    if precision != "bf16":
        return contextlib.nullcontext()
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)


def _step(module: nn.Module, batch: Batch, loss: Loss, precision: Precision, device: str) -> None:
    inputs, targets = batch
    with autocast(precision, device):
        outputs = call(module, inputs)
    found = loss(outputs.float() if outputs.dtype == torch.bfloat16 else outputs, targets)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    torch.autograd.grad(found, parameters, allow_unused=True)
    found.item()  # a device that computes on its own has finished then


def _timed(step: Callable[[], None]) -> float:
    start = time.thread_time(), time.perf_counter()
    step()
    own, all_ = time.thread_time() - start[0], time.perf_counter() - start[1]
    return own if own > all_ / 10 else all_  # a thread that only waits for a device takes none of its own


def _cut(batch: Batch, size: int) -> Batch:
    inputs, targets = batch
    few = slice(size or None)
    return map_leaves(lambda leaf: leaf[few], inputs), map_leaves(lambda leaf: leaf[few], targets)
