"""A flat model in two halves: the client's part is the beginning of the vector, the main server's the rest."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from undrift.errors import ConfigError
from undrift.federation import Federation
from undrift.models.blocks import blocks, cut
from undrift.rule import Masked, Rule, ServerAt
from undrift.vector import FlatModel, Layout


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
    held = _prefix(model.buffer_layout, _statistics(client), _statistics(server), where)
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


def _statistics(part: nn.Module) -> list[str]:
    return [name for name, buffer in part.named_buffers() if buffer.is_floating_point()]


def _prefix(layout: Layout, client: list[str], server: list[str], where: int | str) -> int:
    if [entry.name for entry in layout.entries] != client + server:
        raise ConfigError(f"cut = {where!r}: the two parts share a tensor, so they cannot be trained apart")
    return sum(entry.size for entry in layout.entries[: len(client)])


@dataclass(frozen=True)
class AtClient(Masked):
    """A rule held to the client's part, on which it acts as it acts on a whole model in full rounds.

    What it does to the data, and to the whole model after synchronisation, it does as ever.
    """

    @staticmethod
    def of(rule: Rule, front: Layout) -> AtClient:
        """``rule`` bound to the client's part of a model."""
        try:
            bound = rule.bind(front)
        except ConfigError as error:
            raise ConfigError(f"algorithm {rule.name!r} acts on the clients' part of the model: {error}") from None
        return AtClient(bound, (), rule.name, rule.owns, (slice(0, front.size),))

    def bind(self, layout: Layout) -> AtClient:
        """Bound already, to the client's part."""
        return self

    def federate(self, federation: Federation, seed: int) -> Federation:
        """As the rule does."""
        return self.rule.federate(federation, seed)

    def after(self, x: Tensor, at: ServerAt) -> Tensor:
        """As the rule does, on the whole model."""
        return self.rule.after(x, at)
