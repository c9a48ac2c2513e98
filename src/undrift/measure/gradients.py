"""Gradient dissimilarity: how far clients, and the server's data, are from the whole federation's gradient.

    ``G^2  = (1/N) sum_i ||grad f_i(x) - grad F(x)||^2``,  ``F = sum_i p_i f_i``
    ``xi^2 = ||grad f_0(x) - grad F(x)||^2``

with full-batch gradients in evaluation mode, without weight decay. Mai, La, Zhang: Federated Learning with Server
Learning: Enhancing Performance for Non-IID Data, 2022 (figure 9). Server learning helps at ``x`` when

    ``||grad F||^2 + (1 - L*eta_0) ||grad f_0||^2 > ||grad F - grad f_0||^2``          (9)

and corrects drift well when ``xi^2`` is small against ``G^2``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undrift.data.federation import Indices
from undrift.measure.base import Periodic
from undrift.rounds.progress import Record

if TYPE_CHECKING:
    from undrift.data.samples import Samples
    from undrift.rounds.server_step import Server
    from undrift.rounds.work import Work
    from undrift.rounds.worker import Worker


@dataclass(frozen=True)
class Gradients:
    """Gradients at one point of the parameter space, and what follows from them."""

    whole: Tensor
    """``grad F``."""
    g2: float
    server: Tensor | None
    """``grad f_0``, where the server has data."""

    @property
    def xi2(self) -> float | None:
        """``||grad f_0 - grad F||^2``."""
        return None if self.server is None else square(self.server - self.whole)

    @property
    def cosine(self) -> float | None:
        """The cosine of the angle between ``grad f_0`` and ``grad F``."""
        if self.server is None:
            return None
        norms = math.sqrt(square(self.server) * square(self.whole))
        return float(self.server.dot(self.whole)) / norms if norms else None

    def helps(self, smoothness: float, eta_0: float) -> bool:
        """FSL's condition (9): a step of server learning at rate ``eta_0`` lowers the federation's loss here."""
        if self.server is None:
            return False
        return square(self.whole) + (1 - smoothness * eta_0) * square(self.server) > square(self.whole - self.server)


def square(vector: Tensor) -> float:
    """``||vector||^2``."""
    return float(vector.dot(vector))


def dissimilarity(gradients: Iterable[tuple[Tensor, float]]) -> tuple[Tensor, float]:
    """``grad F`` and ``G^2`` from (gradient, population weight ``p_i``) of every client, one at a time.

    With ``h_i = g_i - g_1`` and ``H = sum_i p_i h_i``: ``G^2 = mean ||h_i||^2 - 2 <mean h_i, H> + ||H||^2``. The
    shift by the first gradient keeps the difference exact: equal clients give 0, not a remainder of rounding.
    """
    first = mean = weighted = torch.empty(0)
    squares, count, total = 0.0, 0, 0.0
    for gradient, weight in gradients:
        g = gradient.double()
        if not count:
            first, mean, weighted = g, torch.zeros_like(g), torch.zeros_like(g)
        h = g - first
        mean += h
        weighted.add_(h, alpha=weight)
        squares += square(h)
        count += 1
        total += weight
    mean, weighted = mean / count, weighted / total
    g2 = squares / count - 2 * float(mean.dot(weighted)) + square(weighted)
    return first + weighted, max(g2, 0.0)


Group = tuple[Indices, float]
"""Rows of the pooled data that make one client, and its weight."""


def clients_of(work: Work) -> list[Group]:
    """Every client's rows and weight."""
    federation = work.federation
    return [(federation.rows(client), work.plan.weight(federation.size(client))) for client in range(len(federation))]


def gradients_at(
    worker: Worker, x: Tensor, buffers: Tensor, groups: Sequence[Group], server: Samples | None
) -> Gradients:
    """Gradients at ``x``, streamed over the clients, and on the server's data."""
    pool = worker.work.federation.pool
    whole, g2 = dissimilarity((worker.gradient_of(pool, x, buffers, rows), weight) for rows, weight in groups)
    return Gradients(whole, g2, None if server is None else worker.gradient_of(server, x, buffers).double())


@dataclass
class GradientMeasure(Periodic):
    """``G^2``, ``xi^2``, ``||grad F||^2`` and the angle at the server model. Costs one pass over all data."""

    def begin(self, worker: Worker) -> None:
        """Needs the clients' data."""
        super().begin(worker)
        self.refuse_remote_data("gradients")

    def tell(self, round: int, server: Server) -> Record:
        """``{"gradients": {"G2": …, "norm2": …}}``, with server data ``xi2``, ``server_norm2``, ``cosine`` too."""
        found = gradients_at(
            self.worker, server.x, server.buffers, clients_of(self.worker.work), self.federation.server
        )
        record: Record = {"G2": found.g2, "norm2": square(found.whole)}
        if found.server is not None:
            record |= {"xi2": found.xi2, "server_norm2": square(found.server), "cosine": found.cosine}
        return {"gradients": record}
