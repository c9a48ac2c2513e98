"""How a run's messages lie in flat vectors; server and sites find it out from the same rule and model."""

from __future__ import annotations

from dataclasses import dataclass

from undrift.engines.local import outcome_like
from undrift.tree import Packing
from undrift.worker import Worker


@dataclass(frozen=True)
class Wire:
    """What goes down, what comes up, and what stays at the site."""

    down: Packing
    up: Packing
    kept: Packing


def wire_of(worker: Worker) -> Wire:
    """The messages of the run that this worker is for."""
    x, buffers, rule = worker.model.weights, worker.model.buffers, worker.work.rule
    out = outcome_like(worker.work, x, buffers)
    return Wire(
        Packing.of({"x": x, "buffers": buffers, "down": rule.down(rule.init_server(x), 1)}),
        Packing.of({name: out[name] for name in ("delta", "buffers", "up")}),
        Packing.of(rule.init_client(x)),
    )
