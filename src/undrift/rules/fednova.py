"""FedNova: clients that make more steps do not pull the objective their way.

A client sends ``delta_i / a_i`` and the number ``a_i``: its steps ``K_i``; with a proximal term ``mu`` in the chain
``a_i = (1 - (1 - lr*mu)^K_i) / (lr*mu)``. The server takes ``a_eff * sum_i w_i (delta_i / a_i)`` for the mean update,
``a_eff = sum_i w_i a_i``. Where all clients make the same number of steps it is FedAvg.

Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization, 2020 (plain SGD).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from undrift.core.tree import Tree
from undrift.rules.feddyn import FedDyn
from undrift.rules.fedprox import FedProx
from undrift.rules.momentum import FedAdc
from undrift.rules.rule import ClientAt, Rule, ServerAt


@dataclass(frozen=True)
class FedNova(Rule):
    """Normalised averaging: updates divided by their clients' steps."""

    mu: float = 0.0
    """The proximal term of the chain."""

    def among(self, others: tuple[Rule, ...]) -> FedNova:
        return replace(self, mu=sum(link.mu for link in others if isinstance(link, FedProx)))

    def clash(self, other: Rule, *, first: bool) -> str | None:
        if isinstance(other, FedDyn):
            return "FedDyn's memories count the clients' own updates, not normalised ones"
        if isinstance(other, FedAdc):
            return "FedADC's embedded momentum moves every client equally far, whatever its steps"
        if other.expects:
            return f"the number of steps that FedNova sends would be clipped and noised by {other.name!r}"
        return None

    def up(self, delta: Tensor, at: ClientAt) -> tuple[Tree, Tree]:
        return {"a": delta.new_tensor([self._length(at)])}, {}

    def encode(self, sent: Tree, at: ClientAt) -> tuple[Tree, Tree]:
        return sent | {"delta": sent["delta"] / self._length(at)}, {}

    def mean(self, delta: Tensor, at: ServerAt) -> Tensor:
        a_eff = float(at.up["a"]) / at.share
        return delta * a_eff

    def _length(self, at: ClientAt) -> float:
        """``a_i``: how far a client goes along a gradient of length 1, in rates."""
        if not self.mu:
            return float(at.steps)
        return (1 - (1 - at.lr * self.mu) ** at.steps) / (at.lr * self.mu)


def fednova() -> FedNova:
    """Normalised averaging: updates divided by their clients' steps."""
    return FedNova()
