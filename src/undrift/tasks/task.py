"""What a task says: its loss, whether data fit it, and which sums are counted in an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from undrift.core.nested import Nested, length

Loss = Callable[[Tensor, Any], Tensor]
"""The mean loss of a batch, from the model's scores and the targets."""
Sums = dict[str, tuple[Any, Any]]
"""Under each name a sum, and what it is divided by."""


class Task:
    """Base of all tasks; a task of one's own fills in what it needs."""

    name: str = ""
    monitor: str = "accuracy"
    """What sweeps, races and summaries look at, unless something else is asked for."""

    def loss(self, outputs: Tensor, targets: Nested) -> Tensor:
        """The mean loss of a batch, where no other loss is given."""
        raise NotImplementedError(f"task {self.name!r} has no loss of its own: give loss=")

    def misfit(self, outputs: Tensor, targets: Nested) -> str | None:
        """Why outputs and targets are not of this task; None if they are."""
        return None

    def size(self, targets: Nested) -> Any:
        """How many things the mean loss of a batch is a mean over."""
        return length(targets)

    def counts(self, outputs: Tensor, targets: Nested) -> Sums:
        """What is counted on some samples."""
        return {}

    def metrics(self, sums: dict[str, tuple[float, float]], loss: float) -> dict[str, float]:
        """The metrics of a whole evaluation, from its sums and its mean loss."""
        return {name: total / count for name, (total, count) in sums.items() if count}
