"""An evaluation in pieces, and the numbers that its pieces give together.

Pieces are fixed, so sums do not depend on who makes them: neighbouring samples of a set, and, where clients have test
data of their own, samples of one client.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from undrift.core.nested import Nested
from undrift.data.samples import Batch, InMemory, Visit
from undrift.rounds.progress import Monitor, Record
from undrift.rounds.work import Work
from undrift.tasks import LossOnly
from undrift.tasks.metrics import computed

CHUNK = 200
"""Samples of a piece: few enough that activations are not given back to the system after every piece."""
CLIENTS = "clients"
SERVER_MODEL = "clients_server"
"""The server model on clients' own test data, where clients have layers of their own."""


@dataclass(frozen=True)
class Piece:
    """Some samples of an evaluation: rows ``start`` to ``stop`` of a set, or of one client's own test data."""

    name: str
    start: int
    stop: int
    client: int = -1

    def samples(self, work: Work) -> Batch:
        """The piece's inputs and targets."""
        if self.client >= 0:
            assert work.federation.tests is not None
            rows = work.federation.tests[self.client][self.start : self.stop]
            return work.federation.pool.take(rows, Visit(work.plan.seed, 0, self.client))
        data = work.evaluated()[self.name]
        if isinstance(data, InMemory):
            return data.slice(self.start, self.stop)
        return data.take(np.arange(self.start, self.stop), Visit(work.plan.seed))


def pieces(work: Work) -> list[Piece]:
    """The pieces that an evaluation is made of, in order."""
    found = [piece for name, data in work.evaluated().items() for piece in _pieces(name, len(data))]
    for client, rows in enumerate(work.federation.tests or ()):
        found += _pieces(CLIENTS, len(rows), client)
    return found


def _pieces(name: str, count: int, client: int = -1) -> list[Piece]:
    return [Piece(name, start, min(start + CHUNK, count), client) for start in range(0, count, CHUNK)]


@dataclass
class Score:
    """Sums over evaluated samples."""

    size: float = 0
    """What the mean loss is a mean over (samples; tokens of a language model)."""
    loss: Any = 0.0
    sums: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    chunks: list[tuple[Any, Nested]] = field(default_factory=list)
    """Outputs and targets, where a metric wants to see all of them."""

    def __add__(self, other: Score) -> Score:
        sums = dict(self.sums)
        for name, (total, count) in other.sums.items():
            before = sums.get(name, (0, 0))
            sums[name] = (before[0] + total, before[1] + count)
        return Score(self.size + other.size, self.loss + other.loss, sums, self.chunks + other.chunks)

    def plain(self) -> Score:
        """The same with Python's numbers, for the way between processes."""
        sums = {name: (_number(total), _number(count)) for name, (total, count) in self.sums.items()}
        return Score(_number(self.size), _number(self.loss), sums, self.chunks)

    def mean_loss(self) -> float | None:
        """The mean loss; None where nothing was evaluated."""
        return self.loss / self.size if self.size else None


def _number(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


Scores = dict[tuple[str, int], Score]
"""By set, and by client where it is a client's own."""


def added(scored: Iterable[tuple[Piece, Score]]) -> Scores:
    """The sums of an evaluation, piece by piece in order."""
    scores: Scores = {}
    for piece, score in scored:
        key = (piece.name, piece.client)
        scores[key] = scores.get(key, Score()) + score
    return scores


def record_of(work: Work, scores: Scores, clients: str = CLIENTS) -> Record:
    """What an evaluation adds to a round's record: ``test_accuracy``, ``test_loss`` and what else is counted.

    ``clients``: under which name it tells of the clients' own test data.
    """
    record: Record = {}
    for (name, client), score in scores.items():
        if client < 0:
            record |= {f"{name}_{metric}": value for metric, value in metrics_of(work, score).items()}
    each = {client: metrics_of(work, score) for (_, client), score in scores.items() if client >= 0}
    return record | (_clients(work.monitor, each, clients) if each else {})


def metrics_of(work: Work, score: Score) -> dict[str, float | None]:
    """The metrics of one set, the loss last; accuracy is null where a task does not count it."""
    loss = score.mean_loss()
    found: dict[str, float | None] = {"accuracy": None} if isinstance(work.task, LossOnly) else {}
    if loss is not None:
        found |= work.task.metrics(score.sums, loss)
        found |= {name: computed(name, metric, score.chunks) for name, metric in work.metrics.items()}
    return found | {"loss": loss}


def _clients(monitor: Monitor, each: dict[int, dict[str, float | None]], clients: str) -> Record:
    """Over clients: the mean of the monitored metric, its 10 % and 90 % quantiles, and the worst client."""
    metric = monitor.metric if all(found.get(monitor.metric) is not None for found in each.values()) else "loss"
    values = {client: float(found[metric] or 0.0) for client, found in each.items() if found.get(metric) is not None}
    if not values:
        return {}
    low, high = (float(np.quantile(list(values.values()), share)) for share in (0.1, 0.9))
    worst = (max if monitor.less or metric == "loss" else min)(values, key=lambda client: values[client])
    name = f"{clients}_{metric}"
    return {
        name: statistics.fmean(values.values()),
        f"{name}_p10": low,
        f"{name}_p90": high,
        f"{name}_worst": values[worst],
        f"{clients}_worst": worst,
    }


def in_order(work: Work, found: Sequence[Score]) -> Scores:
    """The sums of an evaluation whose pieces were made elsewhere."""
    return added(zip(pieces(work), found, strict=True))
