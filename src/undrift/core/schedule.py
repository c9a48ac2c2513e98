"""How a rate changes over the rounds; never down to 0."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Kind = Literal["constant", "cosine", "multistep"]


@dataclass(frozen=True)
class Schedule:
    """``value`` in round 1, then constant, a half cosine to ``minimum``, or times ``decay`` after each milestone."""

    value: float
    kind: Kind = "constant"
    minimum: float | None = None
    milestones: tuple[int, ...] = ()
    decay: float = 0.1

    def at(self, round: int, rounds: int) -> float:
        """The value in force in ``round`` (counted from 1) of ``rounds``."""
        if self.kind == "multistep":
            return self.value * self.decay ** sum(round > milestone for milestone in self.milestones)
        if self.kind == "cosine" and rounds > 1:
            low = 0.01 * self.value if self.minimum is None else self.minimum
            return low + (self.value - low) * (1 + math.cos(math.pi * (round - 1) / (rounds - 1))) / 2
        return self.value
