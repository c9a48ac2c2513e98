"""FedOpt: an optimiser at the server, which takes the mean update ``d`` as its gradient (with the sign turned).

``m <- beta1*m + (1 - beta1)*d``, and

- adam: ``v <- beta2*v + (1 - beta2)*d^2``;
- yogi: ``v <- v - (1 - beta2)*d^2*sign(v - d^2)``;
- adagrad: ``v <- v + d^2``;

then ``x <- x + lr*m/(sqrt(v) + tau)``. ``v`` starts at ``tau^2``; nothing is corrected for its start.
Momentum (FedAvgM): ``m <- beta1*m + d``; ``x <- x + lr*m``. With ``beta1 = 0`` it is FedAvg with server rate ``lr``.

Reddi et al., Adaptive Federated Optimization, 2021.
Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from undrift.core.tree import Tree
from undrift.errors import ConfigError
from undrift.rules.rule import Owns, Rule, ServerAt


@dataclass(frozen=True)
class FedOpt(Rule):
    """An optimiser at the server: adam, yogi, adagrad or momentum."""

    optimiser: Literal["adam", "yogi", "adagrad", "momentum"] = "adam"
    lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    owns = frozenset({Owns.SERVER_STEP})

    def __post_init__(self) -> None:
        if self.optimiser not in ("adam", "yogi", "adagrad", "momentum"):
            raise ConfigError(
                f"fedopt.optimiser = {self.optimiser!r}: 'adam', 'yogi', 'adagrad' or 'momentum' is allowed"
            )
        for key in ("lr", "tau"):
            if getattr(self, key) <= 0:
                raise ConfigError(f"{self.name}.{key} = {getattr(self, key)}: must be above 0")
        for key in ("beta1", "beta2"):
            if not 0 <= getattr(self, key) < 1:
                raise ConfigError(f"{self.name}.{key} = {getattr(self, key)}: must be at least 0 and below 1")

    def init_server(self, x: Tensor) -> Tree:
        m = {"m": torch.zeros_like(x)}
        return m if self.optimiser == "momentum" else m | {"v": torch.full_like(x, self.tau**2)}

    def server(self, step: Tensor, at: ServerAt) -> tuple[Tensor, Tree]:
        d, m = step, at.state["m"]
        if self.optimiser == "momentum":
            m = self.beta1 * m + d
            return self.lr * m, {"m": m}
        m = self.beta1 * m + (1 - self.beta1) * d
        v = self._second_moment(at.state["v"], d * d)
        return self.lr * m / (v.sqrt() + self.tau), {"m": m, "v": v}

    def _second_moment(self, v: Tensor, square: Tensor) -> Tensor:
        if self.optimiser == "adam":
            return self.beta2 * v + (1 - self.beta2) * square
        if self.optimiser == "yogi":
            return v - (1 - self.beta2) * square * torch.sign(v - square)
        return v + square


@dataclass(frozen=True)
class FedAvgM(FedOpt):
    """Momentum at the server: ``m <- beta1*m + d``; ``x <- x + lr*m``."""

    name = "fedavgm"


def fedavgm(lr: float = 1.0, beta1: float = 0.9) -> FedAvgM:
    """FedOpt with momentum: ``m <- beta1*m + d``; ``x <- x + lr*m``."""
    return FedAvgM("momentum", lr, beta1)
