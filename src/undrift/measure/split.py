"""Gradient variance of the clients' part: at a client, and across clients, divided by its blocks ``L_c``.

    at a client:     ``mean over its batches of ||g - g_n||^2 / L_c``,  ``g_n`` the mean of its batches' gradients
    across clients:  ``(1/N) sum_n ||g_n - mean_n g_n||^2 / L_c``

at the synchronised model, in evaluation mode, without weight decay. Huang, Tian, Tang: When MiniBatch SGD Meets
SplitFed Learning, 2023. In a run of whole models the clients' part is the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor, nn

from undrift.core.streams import stream
from undrift.measure.base import Periodic
from undrift.measure.gradients import dissimilarity
from undrift.models.blocks import blocks
from undrift.rounds.plan import batches
from undrift.rounds.progress import Record
from undrift.rounds.split.parts import blocks_at_client, halve
from undrift.rules.rule import Owns
from undrift.rules.split import Split

if TYPE_CHECKING:
    from undrift.rounds.server_step import Server
    from undrift.rounds.worker import Worker


@dataclass
class SplitVariance(Periodic):
    """Gradient variance at a client (mean over clients) and across clients. Costs one pass over all data."""

    size: int = field(init=False)
    blocks: int = field(init=False)

    def begin(self, worker: Worker) -> None:
        """Needs the clients' data; finds the clients' part."""
        super().begin(worker)
        self.refuse_remote_data("split_variance")
        module, algorithm = worker.model.module, worker.work.rule.owner_of(Owns.ROUND_KIND)
        if isinstance(algorithm, Split) and isinstance(module, nn.Sequential):
            self.size = halve(worker.model, algorithm.cut).size
            self.blocks = blocks_at_client(module, algorithm.cut)
        else:
            self.size = worker.model.layout.size
            self.blocks = len(blocks(module) if isinstance(module, nn.Sequential) else worker.model.layout.layers)

    def tell(self, round: int, server: Server) -> Record:
        """``{"split_variance": {"client": …, "clients": …, "blocks": L_c}}``."""
        within: list[float] = []

        def means() -> Iterator[tuple[Tensor, float]]:
            for client in range(len(self.federation)):
                mean, variance = dissimilarity(self._gradients(round, client, server))
                within.append(variance)
                yield mean, 1.0

        _, across = dissimilarity(means())
        at_client = sum(within) / len(within) / self.blocks
        return {"split_variance": {"client": at_client, "clients": across / self.blocks, "blocks": self.blocks}}

    def _gradients(self, round: int, client: int, server: Server) -> Iterator[tuple[Tensor, float]]:
        plan, index = self.worker.work.plan, self.federation.rows(client)
        for batch in batches(len(index), plan.batch_size, 1, None, stream(plan.seed, "measure", round, client)):
            found = self.worker.gradient_of(self.federation.pool, server.x, server.buffers, index[batch])
            yield found[: self.size], 1.0
