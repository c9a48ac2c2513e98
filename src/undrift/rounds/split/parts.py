"""A flat model in two parts: the client's is the beginning of the vector, the main server's the rest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from undrift.core.nested import call
from undrift.core.vector import FlatModel, Layout
from undrift.errors import ConfigError
from undrift.models.blocks import blocks, cut
from undrift.rounds.worker import Worker
from undrift.rules.split import Split


@dataclass(frozen=True)
class Halves:
    """The two parts of a model and the lengths of the client's vectors; they share the model's memory."""

    client: nn.Sequential
    server: nn.Sequential
    size: int
    """Parameters at the client."""
    buffer_size: int
    """Running statistics at the client."""


def halve(model: FlatModel, where: int | str) -> Halves:
    """Cut a model, and check that the client's part is a prefix of its vectors."""
    if not isinstance(model.module, nn.Sequential):
        raise ConfigError(f"cut = {where!r}: only an nn.Sequential can be cut, not {type(model.module).__name__}")
    client, server = cut(model.module, where)
    size = _prefix(model.layout, _trained(client), _trained(server), where)
    held = _prefix(
        model.buffer_layout, _statistics(client, model.buffer_layout), _statistics(server, model.buffer_layout), where
    )
    if not 0 < size < model.layout.size:
        side = "server" if size else "client"
        raise ConfigError(f"cut = {where!r} leaves the {side} without trainable parameters")
    return Halves(client, server, size, held)


def blocks_at_client(model: nn.Sequential, where: int | str) -> int:
    """How many blocks (``L_c``) a cut leaves at the client, one that is cut inside counted."""
    inside = {name for name, _ in cut(model, where)[0].named_children()}
    return sum(not inside.isdisjoint(block) for block in blocks(model))


def _trained(part: nn.Module) -> list[str]:
    return [name for name, parameter in part.named_parameters() if parameter.requires_grad]


def _statistics(part: nn.Module, layout: Layout) -> list[str]:
    kept = {entry.name for entry in layout.entries}
    return [name for name, buffer in part.named_buffers() if buffer.is_floating_point() and name in kept]


def _prefix(layout: Layout, client: list[str], server: list[str], where: int | str) -> int:
    if [entry.name for entry in layout.entries] != client + server:
        raise ConfigError(f"cut = {where!r}: the two parts share a tensor, so they cannot be trained apart")
    return sum(entry.size for entry in layout.entries[: len(client)])


class SplitParts:
    """What the parties of a split round have in common in one process: the cut model, and fronts to train."""

    def __init__(self, worker: Worker, algorithm: Split) -> None:
        self.worker, self.work, self.algorithm = worker, worker.work, algorithm
        self.halves = halve(worker.model, algorithm.cut)
        self._fronts: list[FlatModel] = []

    def attach(self, weights: Tensor, buffers: Tensor) -> FlatModel:
        """A client's part of the model with these vectors, for as long as the client acts."""
        front = (
            self._fronts.pop()
            if self._fronts
            else FlatModel(self.halves.client, self.work.device, self.work.statistics)
        )
        front.mode(training=True)
        front.load(weights, buffers)
        return front

    def detach(self, front: FlatModel) -> tuple[Tensor, Tensor]:
        """Take a client's part back; returns its vectors."""
        self._fronts.append(front)
        return front.weights.clone(), front.buffers.clone()

    @cached_property
    def smashed_bytes(self) -> int:
        """What one sample's smashed data cost."""
        with torch.no_grad():
            return self._forward().nbytes

    @cached_property
    def graph_bytes(self) -> int:
        """What autograd keeps of one sample's forward pass through the clients' part."""
        kept: list[int] = []

        def keep(tensor: Tensor) -> Tensor:
            kept.append(0 if isinstance(tensor, nn.Parameter) else tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            self._forward()
        return sum(kept)

    def _forward(self) -> Tensor:
        with self.worker.evaluating(), self.worker.autocast():
            return call(self.halves.client, self.worker.place.moved(self.work.federation.pool.take(np.array([0])))[0])
