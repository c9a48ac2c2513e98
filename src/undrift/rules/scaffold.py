"""SCAFFOLD: control variates against client drift, and FedPVR: the same on the last layers only.

A client steps along ``g_i(y) - c_i + c``. After its ``K`` steps

- option II: ``c_i' = c_i - c - delta_i / (K*lr)``;
- option I: ``c_i' = `` the full-batch gradient of ``f_i`` at ``x``;

and the server sets ``c <- c + sum_cohort p_i (c_i' - c_i)``, so that always ``c = sum_i p_i c_i``.

Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, 2020.
Li et al., On the effectiveness of partial variance reduction in federated learning with heterogeneous
data (FedPVR), 2023: with no layer FedAvg, with all layers SCAFFOLD.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from undrift.core.tree import Tree
from undrift.errors import ConfigError
from undrift.rules.masked import Masked, masked
from undrift.rules.rule import ClientAt, Owns, Rule, ServerAt


@dataclass(frozen=True)
class Scaffold(Rule):
    """Control variates: ``y <- y - lr * (g - c_i + c)``."""

    option: int = 2
    owns = frozenset({Owns.CLIENT_CORRECTION})

    def __post_init__(self) -> None:
        if self.option not in (1, 2):
            raise ConfigError(f"scaffold.option = {self.option}: 1 or 2 is allowed")

    def init_server(self, x: Tensor) -> Tree:
        return {"c": torch.zeros_like(x)}

    def init_client(self, x: Tensor) -> Tree:
        return {"c": torch.zeros_like(x)}

    def down(self, state: Tree, round: int) -> Tree:
        return {"c": state["c"]}

    def start(self, at: ClientAt) -> Tree:
        return {"c_i - c": at.kept["c"] - at.down["c"]}

    def push(self, v: Tensor, at: ClientAt, scale: float) -> None:
        v.sub_(at.local["c_i - c"], alpha=scale)

    def up(self, delta: Tensor, at: ClientAt) -> tuple[Tree, Tree]:
        if self.option == 1:
            c = at.full_gradient()
        else:
            c = torch.sub(at.local["c_i - c"], delta, alpha=1 / (at.steps * at.lr), out=at.keep.get("c"))
        return {"dc": torch.sub(c, at.kept["c"], out=at.send.get("dc"))}, {"c": c}

    def server(self, step: Tensor, at: ServerAt) -> tuple[Tensor, Tree]:
        return step, {"c": at.state["c"] + at.up["dc"]}


def fedpvr(layers: int | Sequence[str] = 1) -> Masked:
    """SCAFFOLD on the last ``layers`` layers (or the named ones), plain SGD on the rest."""
    return masked(Scaffold(), layers, name="fedpvr")
