"""FedDyn: dynamic regularisation aligns the clients' optima with the server's.

Client: gradient ``g_i(y) - h_i + alpha*(y - x)``; afterwards ``h_i <- h_i - alpha*(y_i - x)``.
Server: ``h <- h - alpha * sum_cohort p_i (y_i - x)``; ``x <- mean(y_i) - h/alpha``. Always ``h = sum_i p_i h_i``.

Acar et al., Federated Learning Based on Dynamic Regularization, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.core.tree import Tree
from undrift.errors import ConfigError
from undrift.rules.rule import ClientAt, Owns, Rule, ServerAt


@dataclass(frozen=True)
class FedDyn(Rule):
    """``y <- y - lr * (g - h_i + alpha*(y - x))``; ``x <- mean(y_i) - h/alpha``."""

    alpha: float = 0.1
    owns = frozenset({Owns.CLIENT_CORRECTION, Owns.SERVER_STEP})

    def __post_init__(self) -> None:
        if self.alpha <= 0:
            raise ConfigError(f"feddyn.alpha = {self.alpha}: must be above 0")

    def init_server(self, x: Tensor) -> Tree:
        return {"h": torch.zeros_like(x)}

    def init_client(self, x: Tensor) -> Tree:
        return {"h": torch.zeros_like(x)}

    def start(self, at: ClientAt) -> Tree:
        return {"constant": (self.alpha * at.x).add_(at.kept["h"])}

    def gradient(self, g: Tensor, y: Tensor, at: ClientAt) -> None:
        g.add_(y, alpha=self.alpha).sub_(at.local["constant"])

    def up(self, delta: Tensor, at: ClientAt) -> tuple[Tree, Tree]:
        return {}, {"h": torch.sub(at.kept["h"], delta, alpha=self.alpha, out=at.keep.get("h"))}

    def server(self, step: Tensor, at: ServerAt) -> tuple[Tensor, Tree]:
        h = at.state["h"] - self.alpha * at.share * at.delta
        return step - h / self.alpha, {"h": h}
