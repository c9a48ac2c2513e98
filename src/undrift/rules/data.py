"""Rules about who has which data: data sharing (DS) and centralised training.

Zhao et al., Federated Learning with Non-IID Data, 2018 (data sharing, the baseline of the FSL papers).
"""

from __future__ import annotations

from dataclasses import dataclass

from undrift.data.federation import Federation
from undrift.errors import ConfigError
from undrift.rules.rule import Owns, Rule


@dataclass(frozen=True)
class Ds(Rule):
    """Every client trains on ``D_i`` and ``D_0`` together, as a multiset, and weighs ``n_i + n_0``.

    ``share`` below 1 sends each client a random part of ``D_0``. The server does not learn.
    """

    share: float = 1.0
    owns = frozenset({Owns.CLIENT_DATA})
    needs_server_data = True

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"ds.share = {self.share}: must be above 0 and at most 1")

    def federate(self, federation: Federation, seed: int) -> Federation:
        return federation.shared(self.share, seed)


@dataclass(frozen=True)
class Centralised(Rule):
    """Minibatch SGD on the pooled data, ``local_epochs`` epochs a round: the ceiling to compare with."""

    owns = frozenset({Owns.EVERYTHING})

    def federate(self, federation: Federation, seed: int) -> Federation:
        return federation.pooled()
