"""Label skew of the partition, from the clients' label distributions ``q_i`` and the pooled one ``q``.

- entropy: ``(1/N) sum_i H(q_i)`` in nats, against ``H(q)``;
- earth mover's distance ``(1/N) sum_i (1/2) sum_c |q_i(c) - q(c)|``, the distance between two classes being 1:
  0 where every client has the pooled mix, near 1 where clients share no class with the others. (Zhao et al.,
  Federated Learning with Non-IID Data, 2018, give twice this number.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from undrift.data.skew import label_counts
from undrift.measure.base import Periodic
from undrift.rounds.progress import Record

if TYPE_CHECKING:
    from undrift.data.federation import Federation
    from undrift.rounds.server_step import Server
    from undrift.rounds.worker import Worker


@dataclass(frozen=True)
class Skew:
    """How unlike the clients' labels are."""

    entropy: float
    entropy_pooled: float
    emd: float
    emd_max: float


def skew_of(counts: NDArray[np.int64]) -> Skew:
    """The skew of a table [clients, classes] of sample counts."""
    own = counts / counts.sum(axis=1, keepdims=True)
    pooled = counts.sum(axis=0) / counts.sum()
    emd = np.abs(own - pooled).sum(axis=1) / 2
    return Skew(float(np.mean([_entropy(q) for q in own])), _entropy(pooled), float(emd.mean()), float(emd.max()))


def _entropy(q: NDArray[np.float64]) -> float:
    positive = q[q > 0]
    return float(-(positive * np.log(positive)).sum()) + 0.0


def counts_of(federation: Federation, classes: int | None = None) -> NDArray[np.int64]:
    """The table [clients, classes] of what clients train on."""
    labels = federation.labels
    assert labels is not None, "label skew needs labels"
    parts = [federation.rows(client) for client in range(len(federation))]
    return label_counts(labels, parts, classes or int(labels.max()) + 1)


@dataclass
class SkewMeasure(Periodic):
    """The partition's label skew, written once, with round 0."""

    def begin(self, worker: Worker) -> None:
        """Needs the clients' labels."""
        super().begin(worker)
        self.refuse_remote_data("skew")
        self.refuse_no_classes("skew")

    def tell(self, round: int, server: Server) -> Record:
        """``{"skew": {"entropy": …, "entropy_pooled": …, "emd": …, "emd_max": …}}``."""
        return {"skew": vars(skew_of(counts_of(self.federation)))} if round == 0 else {}
