"""Metrics of one's own: torchmetrics' objects, or functions of all outputs and targets of an evaluation.

Workers give the outputs of their chunks; the metric is made of them in the order of the samples, by the process that
drives the run, so its value does not depend on engine or workers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from undrift.core.nested import Nested
from undrift.core.plugins import called, own
from undrift.core.trouble import describe
from undrift.data.samples import InMemory, joined
from undrift.errors import ConfigError, RunError

Function = Callable[[Tensor, Any], Any]
Metric = Any
"""A torchmetrics metric (``update``, ``compute``), or a function ``(outputs, targets) -> number``."""
TAKEN = ("loss", "accuracy", "exact", "mae", "rmse", "perplexity")


def check_metrics(metrics: Mapping[str, Metric]) -> None:
    """Refuse names that are taken, and things that are no metric."""
    for name, metric in metrics.items():
        if not name.isidentifier() or name in TAKEN:
            raise ConfigError(
                f"metrics: {name!r} is no name for a metric (letters, digits and _; not {', '.join(TAKEN)})"
            )
        if not callable(metric):
            raise ConfigError(f"metrics: {name!r} is {type(metric).__name__}, no function and no torchmetrics metric")


def metrics_named(given: Sequence[str] | Mapping[str, str | Mapping[str, Any]]) -> dict[str, Metric]:
    """Metrics by name, as a configuration gives them.

    Either names ``package.module:f1``, or a table: ``{f1 = "package.module:name"}``, or with arguments
    ``{f1 = {name = "torchmetrics.classification:MulticlassF1Score", num_classes = 10}}``.
    """
    table = given if isinstance(given, Mapping) else {name.rpartition(":")[2].lower(): name for name in given}
    return {key: _made(key, value) for key, value in table.items()}


def _made(key: str, value: str | Mapping[str, Any]) -> Metric:
    where = f"task.metrics.{key}"
    if isinstance(value, str):
        found = own(value, where)
        return called(value, where, {}) if isinstance(found, type) else found
    arguments = dict(value)
    name = arguments.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(f"{where}: name = 'package.module:name' is missing")
    return called(name, where, arguments)


def computed(name: str, metric: Metric, chunks: Sequence[tuple[Tensor, Nested]]) -> float:
    """A metric of a whole evaluation, from the outputs and targets of its chunks in order."""
    try:
        value = _updated(metric, chunks) if hasattr(metric, "update") else _called(metric, chunks)
        return float(value)
    except Exception as error:
        raise RunError(f"metric {name!r}: {describe(error)}") from error


def _updated(metric: Metric, chunks: Sequence[tuple[Tensor, Nested]]) -> Any:
    fresh = copy.deepcopy(metric)
    fresh.reset()
    for outputs, targets in chunks:
        fresh.update(outputs, targets)
    return fresh.compute()


def _called(metric: Function, chunks: Sequence[tuple[Tensor, Nested]]) -> Any:
    whole = joined([InMemory(outputs, targets) for outputs, targets in chunks])
    with torch.no_grad():
        return metric(whole.inputs, whole.targets)
