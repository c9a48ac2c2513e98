"""SlowMo: momentum at the server, and FedADC: that momentum pushed into the clients' steps.

Both take ``d = -delta/lr`` as pseudo-gradient. SlowMo: ``m <- beta*m + d``; ``x <- x - alpha*lr*m``.

FedADC embeds a share ``e`` of ``m`` in the local steps, ``m_bar = e*m/H`` with the client's own ``H`` steps:

- heavy-ball: ``y <- y - lr*(g_i(y) + m_bar)``;
- Nesterov: ``y' = y - lr*m_bar``; ``y <- y' - lr*g_i(y')``;

server: ``m <- d + (beta - e)*m``; ``x <- x - alpha*lr*m``.

Wang et al., SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum, 2020.
Ozfatura et al., FedADC: Accelerated Federated Learning with Drift Control, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from undrift.core.tree import Tree
from undrift.errors import ConfigError
from undrift.rules.rule import ClientAt, Owns, Rule, ServerAt


@dataclass(frozen=True)
class SlowMo(Rule):
    """``m <- beta*m - delta/lr``; ``x <- x - alpha*lr*m``."""

    beta: float = 0.7
    alpha: float = 1.0
    owns = frozenset({Owns.SERVER_STEP})

    def __post_init__(self) -> None:
        _check_momentum("slowmo", self.beta, self.alpha)

    def init_server(self, x: Tensor) -> Tree:
        return {"m": torch.zeros_like(x)}

    def server(self, step: Tensor, at: ServerAt) -> tuple[Tensor, Tree]:
        m = self.beta * at.state["m"] - step / at.lr
        return -self.alpha * at.lr * m, {"m": m}


@dataclass(frozen=True)
class FedAdc(Rule):
    """SlowMo whose momentum is (in part) embedded in the local steps."""

    beta: float = 0.9
    alpha: float = 1.0
    variant: Literal["nesterov", "heavyball"] = "nesterov"
    embed: float = 1.0
    downlink: Literal["send", "track"] = "send"
    owns = frozenset({Owns.SERVER_STEP})

    def __post_init__(self) -> None:
        _check_momentum("fedadc", self.beta, self.alpha)
        if self.variant not in ("nesterov", "heavyball"):
            raise ConfigError(f"fedadc.variant = {self.variant!r}: 'nesterov' or 'heavyball' is allowed")
        if self.downlink not in ("send", "track"):
            raise ConfigError(f"fedadc.downlink = {self.downlink!r}: 'send' or 'track' is allowed")

    @property
    def tracked(self) -> bool:  # type: ignore[override]
        """Whether all clients follow ``m`` by a broadcast of the mean difference (only the bytes differ)."""
        return self.downlink == "track"

    def init_server(self, x: Tensor) -> Tree:
        return {"m": torch.zeros_like(x)}

    def down(self, state: Tree, round: int) -> Tree:
        return {"m": state["m"]}

    def start(self, at: ClientAt) -> Tree:
        return {"m_bar": at.down["m"] * (self.embed / at.steps)}

    def shift(self, y: Tensor, at: ClientAt) -> None:
        if self.variant == "nesterov":
            y.sub_(at.local["m_bar"], alpha=at.lr)

    def push(self, v: Tensor, at: ClientAt, scale: float) -> None:
        if self.variant == "heavyball":
            v.add_(at.local["m_bar"], alpha=scale)

    def server(self, step: Tensor, at: ServerAt) -> tuple[Tensor, Tree]:
        m = (self.beta - self.embed) * at.state["m"] - step / at.lr
        return -self.alpha * at.lr * m, {"m": m}


def _check_momentum(name: str, beta: float, alpha: float) -> None:
    if not 0 <= beta < 1:
        raise ConfigError(f"{name}.beta = {beta}: must be at least 0 and below 1")
    if alpha <= 0:
        raise ConfigError(f"{name}.alpha = {alpha}: must be above 0")
