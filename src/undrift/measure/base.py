"""What measures have in common: they look at some of the evaluated rounds, and do nothing in the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from undrift.errors import ConfigError
from undrift.rounds.progress import Record

if TYPE_CHECKING:
    from torch import Tensor

    from undrift.data.federation import Federation
    from undrift.data.samples import Samples
    from undrift.rounds.messages import Outcome
    from undrift.rounds.server_step import Server
    from undrift.rounds.worker import Worker


@dataclass
class Periodic:
    """A measure of evaluated rounds that are multiples of ``every``; fill in :meth:`see` and :meth:`tell`."""

    every: int = 1
    worker: Worker = field(init=False, repr=False)

    def begin(self, worker: Worker) -> None:
        """Take what the run computes with; the place to refuse a federation that cannot be measured."""
        self.worker = worker

    def due(self, round: int) -> bool:
        """Whether this round is measured."""
        plan = self.worker.work.plan
        return round % self.every == 0 and (round % plan.eval_every == 0 or round == plan.rounds)

    def observe(self, round: int, outcome: Outcome, weight: float, x: Tensor) -> None:
        """Look at a client's accepted update where the round is due."""
        if self.due(round):
            self.see(outcome, weight, x)

    def report(self, round: int, server: Server) -> Record:
        """What to add to the record of a due round."""
        return self.tell(round, server) if self.due(round) else {}

    def see(self, outcome: Outcome, weight: float, x: Tensor) -> None:
        """One client's update ``outcome.delta = y_i - x``; its tensors are valid only now."""

    def tell(self, round: int, server: Server) -> Record:
        """The numbers of this round; ``server`` is the model after it."""
        raise NotImplementedError

    @contextmanager
    def loaded(self, x: Tensor, buffers: Tensor) -> Iterator[None]:
        """The run's model with other weights, in evaluation mode; everything is put back afterwards."""
        with self.worker.loaded(x, buffers), self.worker.evaluating():
            yield

    @property
    def federation(self) -> Federation:
        """The federation of the run."""
        return self.worker.work.federation

    def test_data(self, key: str) -> Samples:
        """The test data, refusing a run without."""
        if self.federation.test is None:
            raise ConfigError(f"measure.{key}: there is no test data to measure it on")
        return self.federation.test

    def refuse_remote_data(self, key: str) -> None:
        """Some measures need every client's data in this process, as in a simulation."""
        if not len(self.federation.pool):
            raise ConfigError(f"measure.{key}: needs the clients' data, which this process does not have")

    def refuse_no_classes(self, key: str) -> None:
        """Some measures need class labels."""
        if self.federation.labels is None:
            raise ConfigError(f"measure.{key}: needs class labels")
