"""How far clients' updates point apart.

Drift diversity of a layer in a round, with ``m_i = y_i - x`` over the cohort:

    ``sum_i ||m_i||^2 / ||sum_i m_i||^2``

``1/S`` where all ``S`` updates are equal, 1 where they are orthogonal, without bound where they cancel.
Yin et al., Gradient Diversity: a Key Ingredient for Scalable Distributed Learning, 2018; for layers, Li et al.,
On the effectiveness of partial variance reduction in federated learning with heterogeneous data (FedPVR), 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undrift.measure.base import Periodic
from undrift.rounds.progress import Record

if TYPE_CHECKING:
    from undrift.core.vector import Layer
    from undrift.rounds.messages import Outcome
    from undrift.rounds.server_step import Server


def ratio(above: float, below: float) -> float | None:
    """A quotient for JSON: None where it is not a finite number (updates that cancel exactly)."""
    return above / below if below > 0 and above / below < float("inf") else None


@dataclass
class Drift(Periodic):
    """Drift diversity of the whole model and of each layer, in memory of one model."""

    _sum: Tensor | None = field(default=None, init=False, repr=False)
    _squares: dict[str, float] = field(default_factory=dict, init=False, repr=False)

    def see(self, outcome: Outcome, weight: float, x: Tensor) -> None:
        """Add a client's update to the sums."""
        delta = outcome.delta.double()
        if self._sum is None:
            self._sum, self._squares = torch.zeros_like(delta), {}
        self._sum += delta
        for layer in self.worker.model.shared.layers:
            self._squares[layer.name] = self._squares.get(layer.name, 0.0) + _energy(delta, layer)

    def tell(self, round: int, server: Server) -> Record:
        """``{"drift": {"model": …, "layers": {name: …}}}``; nothing in round 0."""
        total, squares = self._sum, self._squares
        self._sum = None
        if total is None:
            return {}
        below = {layer.name: _energy(total, layer) for layer in self.worker.model.shared.layers}
        layers = {name: ratio(squares[name], below[name]) for name in below}
        return {"drift": {"model": ratio(sum(squares.values()), sum(below.values())), "layers": layers}}


def _energy(vector: Tensor, layer: Layer) -> float:
    return sum(float(vector[piece].dot(vector[piece])) for piece in layer.slices)


@dataclass
class Updates(Periodic):
    """Norms of the clients' updates, and their cosine with the mean update ``delta = sum_i w_i delta_i``.

    The mean over clients of ``cos(delta_i, delta)`` is ``<u, delta> / ||delta||`` with ``u`` the mean of the unit
    vectors ``delta_i / ||delta_i||``: two running sums instead of the whole cohort's updates.
    """

    _mean: Tensor | None = field(default=None, init=False, repr=False)
    _units: Tensor | None = field(default=None, init=False, repr=False)
    _norms: list[float] = field(default_factory=list, init=False, repr=False)

    def see(self, outcome: Outcome, weight: float, x: Tensor) -> None:
        """Add a client's update to the sums."""
        delta = outcome.delta.double()
        norm = float(delta.norm())
        if self._mean is None or self._units is None:
            self._mean, self._units, self._norms = torch.zeros_like(delta), torch.zeros_like(delta), []
        self._mean.add_(delta, alpha=weight)
        if norm > 0:
            self._units.add_(delta, alpha=1 / norm)
        self._norms.append(norm)

    def tell(self, round: int, server: Server) -> Record:
        """``{"updates": {"cosine": …, "norm": mean, "norm_min": …, "norm_max": …}}``; nothing in round 0."""
        mean, units, norms = self._mean, self._units, self._norms
        self._mean = self._units = None
        if mean is None or units is None:
            return {}
        moved = sum(norm > 0 for norm in norms)
        cosine = None
        if moved and float(mean.norm()) > 0:
            cosine = float(units.dot(mean)) / (moved * float(mean.norm()))
        return {
            "updates": {
                "cosine": cosine,
                "norm": sum(norms) / len(norms),
                "norm_min": min(norms),
                "norm_max": max(norms),
            }
        }
