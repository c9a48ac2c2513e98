"""MOON: clients' features are kept near the server model's, and away from those of their own last model.

The loss of a batch gets ``mu * -log(e^{s(z, z_glob)/t} / (e^{s(z, z_glob)/t} + e^{s(z, z_prev)/t}))``, averaged over
its samples; ``s`` is the cosine similarity, ``z`` the features of the model that is trained, ``z_glob`` those of the
server model, ``z_prev`` those of the model that the client had at the end of the last round it took part in. In its
first round the term is 0. ``z_glob`` and ``z_prev`` are taken in evaluation mode, with the server's running statistics.

Li, He, Song: Model-Contrastive Federated Learning, 2021.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from undrift.core.tree import Tree
from undrift.errors import ConfigError
from undrift.rules.rule import ClientAt, Features, Rule


@dataclass(frozen=True)
class Moon(Rule):
    """A contrastive term: features near the server model's, away from the client's last ones."""

    mu: float = 1.0
    temperature: float = 0.5
    layer: str | None = None

    def __post_init__(self) -> None:
        if self.mu < 0:
            raise ConfigError(f"moon.mu = {self.mu}: must not be negative")
        if self.temperature <= 0:
            raise ConfigError(f"moon.temperature = {self.temperature}: must be above 0")

    @property
    def feature_layer(self) -> str | None:  # type: ignore[override]
        """Whose output the features are."""
        return self.layer

    def init_client(self, x: Tensor) -> Tree:
        return {"rounds": x.new_zeros(1), "y": torch.zeros_like(x)}

    def loss(self, loss: Tensor, features: Features, at: ClientAt) -> Tensor:
        if not self.mu or not at.kept["rounds"]:
            return loss
        z, both = features.own, (features.of(at.x), features.of(at.kept["y"]))
        near, far = (cosine_similarity(z, other, dim=1) / self.temperature for other in both)
        return loss + self.mu * (torch.logaddexp(near, far) - near).mean()

    def up(self, delta: Tensor, at: ClientAt) -> tuple[Tree, Tree]:
        return {}, {"rounds": at.kept["rounds"] + 1, "y": at.x + delta}
