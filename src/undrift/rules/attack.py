"""Clients that misbehave, for experiments: a share of them, drawn from the seed.

- sign-flip: they send ``-scale`` times their update and messages;
- noise: vectors of random direction, ``scale`` times as long as their own;
- label-flip: their labels ``y`` are ``C - 1 - y``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from undrift.core.streams import stream
from undrift.core.tree import Tree, flatten, unflatten
from undrift.data.federation import Federation
from undrift.data.samples import InMemory
from undrift.errors import ConfigError
from undrift.rules.rule import ClientAt, Rule, overrides

KINDS = ("sign-flip", "noise", "label-flip")


@dataclass(frozen=True)
class Attack(Rule):
    """A share of the clients misbehaves."""

    how: str = "sign-flip"
    share: float = 0.2
    scale: float = 1.0
    members: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if self.how not in KINDS:
            raise ConfigError(f"attack.kind = {self.how!r}: {', '.join(map(repr, KINDS))} are allowed")
        if not 0 <= self.share <= 1:
            raise ConfigError(f"attack.share = {self.share}: must lie between 0 and 1")
        if self.scale <= 0:
            raise ConfigError(f"attack.scale = {self.scale}: must be above 0")

    def clash(self, other: Rule, *, first: bool) -> str | None:
        if not first and overrides(other, "encode"):
            return "an attack comes before everything that changes what is sent"
        return None

    def for_clients(self, population: int, seed: int) -> Attack:
        drawn = stream(seed, "attack").choice(population, round(self.share * population), replace=False)
        return replace(self, members=frozenset(int(client) for client in drawn))

    def facts(self) -> dict[str, Any]:
        return {"attackers": sorted(self.members)}

    def federate(self, federation: Federation, seed: int) -> Federation:
        if self.how != "label-flip":
            return federation
        labels = federation.labels
        if labels is None or not isinstance(federation.pool, InMemory):
            raise ConfigError("attack.kind = 'label-flip': the targets are no class labels")
        flipped = labels.copy()
        for client in self.for_clients(len(federation), seed).members:
            rows = federation.rows(client)
            flipped[rows] = labels.max() - labels[rows]
        return replace(federation, pool=InMemory(federation.pool.inputs, torch.from_numpy(flipped)))

    def encode(self, sent: Tree, at: ClientAt) -> tuple[Tree, Tree]:
        if at.random.client not in self.members or self.how == "label-flip":
            return sent, {}
        return unflatten({path: self._turned(path, leaf, at) for path, leaf in flatten(sent).items()}, sent), {}

    def _turned(self, path: str, leaf: Tensor, at: ClientAt) -> Tensor:
        if self.how == "sign-flip":
            return leaf * -self.scale
        drawn = torch.randn(leaf.shape, generator=at.generator(path), dtype=leaf.dtype, device=leaf.device)
        return drawn * (self.scale * float(leaf.norm() / drawn.norm()))


def attack(
    kind: Literal["sign-flip", "noise", "label-flip"] = "sign-flip", share: float = 0.2, scale: float = 1.0
) -> Attack:
    """A share of the clients misbehaves."""
    return Attack(kind, share, scale)
