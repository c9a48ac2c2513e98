"""Who is served well: accuracy for each class, and on each client's own data."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from undrift.measure.base import Periodic
from undrift.rounds.progress import Record

if TYPE_CHECKING:
    from undrift.data.federation import Indices
    from undrift.data.samples import Samples
    from undrift.rounds.server_step import Server
    from undrift.rounds.worker import Worker

BATCH = 200


def outputs(worker: Worker, data: Samples, index: Indices | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """(outputs, labels) of the loaded model, chunk by chunk."""
    index = np.arange(len(data)) if index is None else index
    with torch.inference_mode():
        for start in range(0, len(index), BATCH):
            inputs, labels = worker.place.moved(data.take(index[start : start + BATCH]))
            yield worker.outputs(inputs).float().cpu(), labels.cpu()


@dataclass
class ClassAccuracy(Periodic):
    """Accuracy of the server model on the test samples of each class."""

    def begin(self, worker: Worker) -> None:
        """Needs labelled test data."""
        super().begin(worker)
        self.test_data("classes")
        self.refuse_no_classes("classes")

    def tell(self, round: int, server: Server) -> Record:
        """``{"classes": [accuracy of class 0, …]}``, None for a class without test samples."""
        right = total = torch.empty(0)
        with self.loaded(server.x, server.buffers):
            for out, labels in outputs(self.worker, self.test_data("classes")):
                if not len(total):
                    right, total = torch.zeros(out.shape[1]), torch.zeros(out.shape[1])
                total += torch.bincount(labels, minlength=out.shape[1])
                right += torch.bincount(labels[out.argmax(1) == labels], minlength=out.shape[1])
        return {"classes": [float(r / t) if t else None for r, t in zip(right, total, strict=True)]}


@dataclass
class ClientAccuracy(Periodic):
    """Accuracy of the server model on each client's own training data. Costs one pass over all data."""

    def begin(self, worker: Worker) -> None:
        """Needs the clients' labelled data."""
        super().begin(worker)
        self.refuse_remote_data("clients")
        self.refuse_no_classes("clients")

    def tell(self, round: int, server: Server) -> Record:
        """``{"clients": {"mean": …, "min": …, "std": …, "each": [client 0, …]}}``."""
        with self.loaded(server.x, server.buffers):
            each = [self._accuracy(client) for client in range(len(self.federation))]
        return {
            "clients": {"mean": statistics.fmean(each), "min": min(each), "std": statistics.pstdev(each), "each": each}
        }

    def _accuracy(self, client: int) -> float:
        pool, index = self.federation.pool, self.federation.rows(client)
        right = sum(int((out.argmax(1) == labels).sum()) for out, labels in outputs(self.worker, pool, index))
        return right / len(index)
