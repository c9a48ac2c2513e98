"""Robust aggregation: a few bad clients must not decide. All clients weigh alike.

- median: of every coordinate, over the clients (Yin et al. 2018);
- trimmed: the mean of every coordinate without the ``share`` largest and smallest (Yin et al. 2018);
- krum: the mean of the ``keep`` clients whose updates have the smallest sums of squared distances to their
  ``S - byzantine - 2`` nearest (Blanchard et al. 2017);
- clip: every update at most ``norm`` long (``delta * min(1, norm/||delta||)``), whoever sent it.

Median, trimmed and krum act on the individual updates, messages and running statistics, instead of the weighted mean.

Yin et al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, 2018.
Blanchard et al., Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent, 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.core.tree import Tree
from undrift.errors import ConfigError, RunError
from undrift.rules.rule import Owns, Rule

Stacks = dict[str, Tensor]


@dataclass(frozen=True)
class Median(Rule):
    """The median of every coordinate, over the clients."""

    owns = frozenset({Owns.AGGREGATE})
    uniform = True

    def aggregate(self, stacks: Stacks) -> Stacks:
        return {path: _middle(stack, (len(stack) - 1) // 2) for path, stack in stacks.items()}


@dataclass(frozen=True)
class Trimmed(Rule):
    """The mean of every coordinate without the ``share`` largest and the ``share`` smallest."""

    share: float = 0.2
    owns = frozenset({Owns.AGGREGATE})
    uniform = True

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise ConfigError(f"trimmed.share = {self.share}: must be at least 0 and below 0.5")

    def aggregate(self, stacks: Stacks) -> Stacks:
        return {path: _middle(stack, math.floor(self.share * len(stack))) for path, stack in stacks.items()}


def _middle(stack: Tensor, cut: int) -> Tensor:
    """The mean of every coordinate without the ``cut`` largest and smallest values."""
    return stack.sort(0).values[cut : len(stack) - cut].mean(0)


@dataclass(frozen=True)
class Krum(Rule):
    """The mean of the ``keep`` clients that have the most company, where ``byzantine`` may be bad."""

    byzantine: int = 1
    keep: int = 1
    owns = frozenset({Owns.AGGREGATE})
    uniform = True

    def __post_init__(self) -> None:
        if self.byzantine < 0:
            raise ConfigError(f"krum.byzantine = {self.byzantine}: must not be negative")
        if self.keep < 1:
            raise ConfigError(f"krum.keep = {self.keep}: must be at least 1")

    def aggregate(self, stacks: Stacks) -> Stacks:
        chosen = self.chosen(stacks["delta"])
        return {path: stack[chosen].mean(0) for path, stack in stacks.items()}

    def chosen(self, updates: Tensor) -> list[int]:
        """The clients that count, in the order of the cohort."""
        count, near = len(updates), len(updates) - self.byzantine - 2
        if near < 1 or self.keep > count:
            raise RunError(
                f"krum: {count} clients were heard from; byzantine = {self.byzantine} and keep = {self.keep} need "
                f"at least {max(self.byzantine + 3, self.keep)}"
            )
        squares = torch.stack([(updates - one).double().square().sum(1) for one in updates])
        squares.fill_diagonal_(math.inf)
        scores = squares.sort(1).values[:, :near].sum(1)
        return sorted(int(client) for client in scores.argsort(stable=True)[: self.keep])


@dataclass(frozen=True)
class Clip(Rule):
    """Every update at most ``norm`` long, whoever sent it."""

    norm: float = 1.0
    uniform = True

    def __post_init__(self) -> None:
        if not 0 < self.norm < math.inf:
            raise ConfigError(f"clip.norm = {self.norm}: must be above 0")

    def receive(self, sent: Tree) -> Tree:
        return sent | {"delta": sent["delta"] * shortening(float(sent["delta"].double().norm()), self.norm)}


def shortening(length: float, most: float) -> float:
    """The factor that makes a vector of this length at most ``most`` long."""
    return min(1.0, most / length) if length > 0 else 1.0
