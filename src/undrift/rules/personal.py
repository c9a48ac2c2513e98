"""Personal layers: some layers stay with each client, neither sent nor averaged nor counted.

A client trains the whole model, its own layers included, and keeps them for the next round in which it takes part;
before its first round they are the starting model's. All other rules act on the rest, as on a smaller model.

- FedPer: ``layers = 1``, the last layer (Arivazhagan et al., Federated Learning with Personalization Layers, 2019);
- FedBN: ``layers = "norm"``, the norm layers with their statistics (Li et al., FedBN: Federated Learning on Non-IID
  Features via Local Batch Normalization, 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from undrift.core.tree import Tree, clone, copy_into
from undrift.core.vector import Layout
from undrift.errors import ConfigError
from undrift.rules.rule import ClientAt, Rule


@dataclass(frozen=True)
class Personal(Rule):
    """Layers that never leave a client."""

    layers: int | str | tuple[str, ...]
    sizes: tuple[int, int] = (0, 0)
    """How many weights and buffers these layers have."""

    def personal_layers(self, layout: Layout) -> tuple[str, ...]:
        if self.layers == "norm":
            found = tuple(entry.name for entry in layout.entries if entry.name in layout.norms)
        else:
            assert not isinstance(self.layers, str)
            slices = layout.slices_of(self.layers)
            found = tuple(e.name for e in layout.entries if any(s.start <= e.start < s.stop for s in slices))
        if len(found) == len(layout.entries):
            raise ConfigError(f"personal.layers = {self.layers!r}: these are all layers, so nothing would be shared")
        if not found:
            raise ConfigError(f"personal.layers = {self.layers!r}: the model has no such layer")
        return found

    def bind(self, layout: Layout) -> Personal:
        return replace(self, sizes=layout.personal)

    def init_client(self, x: Tensor) -> Tree:
        weights, buffers = self.sizes
        return {"rounds": x.new_zeros(1), "layers": x.new_zeros(weights), "buffers": x.new_zeros(buffers)}

    def restore(self, kept: Tree, own: Tree) -> None:
        if kept["rounds"]:
            copy_into({"layers": kept["layers"], "buffers": kept["buffers"]}, own)

    def start(self, at: ClientAt) -> Tree:
        self.restore(at.kept, at.own)
        return {}

    def up(self, delta: Tensor, at: ClientAt) -> tuple[Tree, Tree]:
        return {}, {"rounds": at.kept["rounds"] + 1, **clone(at.own)}


def personal(layers: int | Literal["norm"] | Sequence[str] = 1) -> Personal:
    """The last ``layers`` layers, the named ones or the norm layers stay with each client."""
    if isinstance(layers, str) and layers != "norm":
        raise ConfigError(f"personal.layers = {layers!r}: a number, names of layers or 'norm' is allowed")
    return Personal(layers if isinstance(layers, int | str) else tuple(layers))
