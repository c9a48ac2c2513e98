"""What candidates send, from the sizes of their real messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from undrift.core.nested import call
from undrift.core.tree import nbytes
from undrift.data import DataSet
from undrift.diagnose.advice import Candidate
from undrift.experiment.config import Config
from undrift.experiment.from_config import work_of
from undrift.models import blocks, cut
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker
from undrift.rules.rule import Owns


@dataclass(frozen=True)
class Bytes:
    """Sent in one round by the whole cohort."""

    down: int
    up: int

    @property
    def total(self) -> int:
        """Both ways."""
        return self.down + self.up


@dataclass(frozen=True)
class SplitFit:
    """The cheapest cut for split learning."""

    cut: int
    bytes: Bytes
    share: float
    """Of the parameters, at the client."""


def configured(config: Config, candidate: Candidate) -> Config:
    """The configuration with a candidate's algorithm; parameters that the user gave are kept."""
    given = {name: value for name, value in config.algorithm.items() if name in candidate.name.split("+")}
    parameters = {name: given.get(name, {}) | own for name, own in candidate.parameters.items()}
    algorithm: dict[str, Any] = {"name": candidate.name, **given, **parameters}
    new = config.with_(("algorithm", algorithm))
    if new.rule().owner_of(Owns.SERVER_STEP) is not None and new.train.server_lr != 1.0:
        new = new.with_(("train.server_lr", 1.0))
    return new


def bytes_of(config: Config, data: DataSet) -> Bytes:
    """One round's bytes, found by a dry run of the algorithm's messages."""
    work = work_of(config, data)
    worker = Worker(work)
    messages = worker.messages()
    return Bytes(nbytes(messages.down.like) * cohort(work), nbytes(messages.up.like) * cohort(work))


def cohort(work: Work) -> int:
    """Clients in a round."""
    return min(work.plan.cohort or len(work.federation), len(work.federation))


def split_fit(work: Work) -> SplitFit | None:
    """What split learning would send at its cheapest cut; None for models that cannot be cut."""
    if not isinstance(work.module, nn.Sequential) or len(blocks(work.module)) < 2:
        return None
    fits = [_fit(work, work.module, number) for number in range(1, len(blocks(work.module)))]
    return min(fits, key=lambda fit: fit.bytes.total)


def _fit(work: Work, module: nn.Sequential, number: int) -> SplitFit:
    client, _ = cut(module, number)
    sample, _ = work.federation.pool.take(np.arange(2))
    training = client.training
    client.eval()
    with torch.inference_mode():
        smashed = call(client, sample)[0].nbytes
    client.train(training)
    own = sum(p.nbytes for p in client.parameters()) + sum(b.nbytes for b in client.buffers() if b.is_floating_point())
    sizes = work.federation.sizes
    visits = sum(work.plan.visits(int(n)) for n in sizes) / len(sizes)
    down = cohort(work) * (own + visits * smashed)
    up = down + cohort(work) * visits * work.federation.pool.bytes_each[1]
    share = sum(p.numel() for p in client.parameters()) / sum(p.numel() for p in module.parameters())
    return SplitFit(number, Bytes(round(down), round(up)), share)
