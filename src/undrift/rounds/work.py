"""All that a worker has to know before the first round: what is trained, on what, under which rule and settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from undrift.core.vector import FlatModel
from undrift.data.federation import Federation
from undrift.data.samples import Samples
from undrift.rounds.plan import Plan
from undrift.rounds.progress import Monitor
from undrift.rules.chain import Chain
from undrift.tasks import Classification, Loss, Task


@dataclass(frozen=True)
class Work:
    """A run's parts, checked and bound to each other (see ``prepare``)."""

    module: nn.Module
    rule: Chain
    federation: Federation
    plan: Plan
    loss: Loss = nn.functional.cross_entropy
    device: str = "cpu"
    profile: bool = False
    task: Task = field(default_factory=Classification)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    statistics: frozenset[str] | None = None
    """Buffers that training changes, and that are averaged with the weights; None: all floating ones."""
    personal: tuple[str, ...] = ()
    """Parameters that never leave a client."""

    def flat_model(self) -> FlatModel:
        """A model of one's own to train."""
        return FlatModel(self.module, self.device, self.statistics, self.personal)

    def evaluated(self) -> dict[str, Samples]:
        """The data that the server model is evaluated on, by name."""
        sets = {"test": self.federation.test, "validation": self.federation.validation}
        return {name: samples for name, samples in sets.items() if samples is not None}

    @property
    def monitor(self) -> Monitor:
        """What tells whether a run goes well: what was asked for, else accuracy, else the loss."""
        if self.plan.monitor is not None:
            return Monitor.of(self.plan.monitor)
        return Monitor.of(self.task.monitor)
