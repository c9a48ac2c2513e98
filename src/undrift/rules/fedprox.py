"""FedProx: a proximal term holds clients near the server model; the gradient becomes ``g_i(y) + mu*(y - x)``.

Li et al., Federated Optimization in Heterogeneous Networks, 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from undrift.errors import ConfigError
from undrift.rules.rule import ClientAt, Rule


@dataclass(frozen=True)
class FedProx(Rule):
    """``y <- y - lr * (g + mu*(y - x))``."""

    mu: float = 0.01

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise ConfigError(f"fedprox.mu = {self.mu}: must not be negative")

    def gradient(self, g: Tensor, y: Tensor, at: ClientAt) -> None:
        g.add_(y, alpha=self.mu).sub_(at.x, alpha=self.mu)
