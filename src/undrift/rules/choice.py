"""Power of choice: the clients that the server model serves worst take part.

Of ``candidates`` clients, drawn with probabilities proportional to their sizes and without replacement, the ``S`` with
the largest loss at the server model take part. The candidates get the model and send one number for it.

Cho, Wang, Joshi: Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice Selection
Strategies, 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undrift.errors import ConfigError
from undrift.rules.rule import DrawAt, Owns, Rule


@dataclass(frozen=True)
class Choice(Rule):
    """Of some candidates, the clients with the largest loss take part."""

    candidates: int | None = None
    """``d``; None: twice the cohort."""
    owns = frozenset({Owns.COHORT})

    def draw(self, at: DrawAt) -> list[int]:
        count = min(2 * at.cohort, at.population) if self.candidates is None else self.candidates
        if not at.cohort <= count <= at.population:
            raise ConfigError(
                f"choice.candidates = {count}: must lie between the cohort, {at.cohort}, "
                f"and the number of clients, {at.population}"
            )
        sizes = torch.from_numpy(at.sizes).double()
        drawn = torch.multinomial(sizes, count, generator=at.generator("candidates")).tolist()
        ranked = sorted(zip(at.losses(drawn), drawn, strict=True), key=lambda pair: (-pair[0], pair[1]))
        return [client for _, client in ranked[: at.cohort]]
