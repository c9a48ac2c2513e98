"""Client-level differential privacy: what a client sends is clipped, and the cohort's sums are noised.

- Every client takes part with probability ``q = S/N``, independently of the others (Poisson).
- Everything that it sends in a round, update and messages together, is clipped: ``v <- v * min(1, clip/||v||)``.
- The server adds ``N(0, (noise*clip)^2)`` to every coordinate of the sums, then divides the sum of updates by ``q*N``
  and those of messages by ``N``. Numbers that depend on who was drawn are replaced by their expectations.

What the server does with the noised sums (momentum, server learning on its own data) is post-processing and costs
nothing. ``(epsilon, delta)`` holds for adding or removing one client; it is computed by the package ``dp-accounting``
for the Poisson-sampled Gaussian mechanism, by Renyi DP and by privacy loss distributions, whichever gives less.

McMahan et al., Learning Differentially Private Recurrent Language Models, 2018.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from undrift.core.streams import HookRandom
from undrift.core.tree import Tree, flatten, unflatten
from undrift.errors import ConfigError
from undrift.rules.accounting import epsilon
from undrift.rules.data import Ds
from undrift.rules.robust import shortening
from undrift.rules.rule import ClientAt, DrawAt, Owns, RoundKind, Rule


@dataclass(frozen=True)
class Dp(Rule):
    """Client-level differential privacy: clipped updates, noised sums, a known epsilon."""

    clip: float = 1.0
    noise: float = 1.0
    delta: float = 1e-5
    budget: float | None = None
    owns = frozenset({Owns.COHORT, Owns.AGGREGATE})
    uniform = True
    expects = True

    def __post_init__(self) -> None:
        for key in ("clip", "noise"):
            if not 0 < getattr(self, key) < math.inf:
                raise ConfigError(f"dp.{key} = {getattr(self, key)}: must be above 0")
        if not 0 < self.delta < 1:
            raise ConfigError(f"dp.delta = {self.delta}: must lie between 0 and 1")
        if self.budget is not None and self.budget <= 0:
            raise ConfigError(f"dp.budget = {self.budget}: must be above 0")

    def clash(self, other: Rule, *, first: bool) -> str | None:
        if isinstance(other, Ds):
            return "ds hands out samples, which may be clients' own, unprotected"
        if other.kind is RoundKind.SPLIT:
            return "split learning sends activations and labels in every step, unprotected"
        return None

    def draw(self, at: DrawAt) -> list[int]:
        chance = torch.rand(at.population, generator=at.generator("cohort"), dtype=torch.float64)
        return [int(client) for client in (chance < at.cohort / at.population).nonzero()]

    def encode(self, sent: Tree, at: ClientAt) -> tuple[Tree, Tree]:
        factor = shortening(length(at.decoded(sent)), self.clip)
        return scaled(sent, factor), {}

    def receive(self, sent: Tree) -> Tree:
        """Clip again what a client that does not keep to the rule sent."""
        found = length(sent)
        return sent if found <= self.clip * (1 + 1e-5) else scaled(sent, shortening(found, self.clip))

    def release(self, sums: Tree, random: HookRandom) -> Tree:
        noised = {}
        for path, total in flatten(sums).items():
            generator = random.generator(path, total.device)
            drawn = torch.randn(total.shape, generator=generator, dtype=total.dtype, device=total.device)
            noised[path] = total + self.noise * self.clip * drawn
        return unflatten(noised, sums)

    def ends(self, round: int, at: DrawAt) -> bool:
        return self.budget is not None and self.epsilon(round, at) > self.budget

    def report(self, round: int, at: DrawAt) -> dict[str, Any]:
        return {"epsilon": self.epsilon(round, at), "delta": self.delta}

    def epsilon(self, rounds: int, at: DrawAt) -> float:
        """What so many rounds have cost."""
        return epsilon(at.cohort / at.population, self.noise, self.delta, rounds)


def length(sent: Tree) -> float:
    """The Euclidean length of everything that is sent."""
    return math.sqrt(sum(float(leaf.double().square().sum()) for leaf in flatten(sent).values()))


def scaled(sent: Tree, factor: float) -> Tree:
    """All floating numbers times ``factor``."""
    if factor == 1.0:
        return sent
    return unflatten({path: _times(leaf, factor) for path, leaf in flatten(sent).items()}, sent)


def _times(leaf: Tensor, factor: float) -> Tensor:
    return leaf * factor if leaf.is_floating_point() else leaf
