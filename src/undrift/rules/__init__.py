"""The papers' algorithms, one file for each family, and their names in configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from undrift.core.words import nearest
from undrift.errors import ConfigError
from undrift.rules.chain import Chain, chain
from undrift.rules.data import Centralised, Ds
from undrift.rules.feddyn import FedDyn
from undrift.rules.fedprox import FedProx
from undrift.rules.fsl import Fsl
from undrift.rules.momentum import FedAdc, SlowMo
from undrift.rules.rule import FedAvg, Rule
from undrift.rules.scaffold import Scaffold, fedpvr
from undrift.rules.split import MiniBatchSfl, SflV1, SflV2

__all__ = [
    "RULES",
    "Centralised",
    "Ds",
    "FedAdc",
    "FedAvg",
    "FedDyn",
    "FedProx",
    "Fsl",
    "MiniBatchSfl",
    "Scaffold",
    "SflV1",
    "SflV2",
    "SlowMo",
    "fedpvr",
    "named",
    "parts_of",
]

RULES: dict[str, Callable[..., Rule]] = {
    "fedavg": FedAvg,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fedpvr": fedpvr,
    "feddyn": FedDyn,
    "slowmo": SlowMo,
    "fedadc": FedAdc,
    "fsl": Fsl,
    "ds": Ds,
    "centralised": Centralised,
    "sfl-v1": SflV1,
    "sfl-v2": SflV2,
    "minibatch-sfl": MiniBatchSfl,
}
ALIASES = {"dsl": ("ds", "fsl")}
"""Names that stand for several."""


def parts_of(name: str) -> list[str]:
    """The single algorithms in a name such as ``fedpvr+dsl``."""
    return [part for piece in name.split("+") for part in ALIASES.get(piece, (piece,))]


def named(name: str, parameters: Mapping[str, Mapping[str, Any]] | None = None) -> Chain:
    """The rule of a configuration: one name, or several joined by ``+``, each with its own parameters."""
    parts = parts_of(name)
    for part in parts:
        if part not in RULES:
            raise ConfigError(f"algorithm.name = {name!r}: no algorithm {part!r}; {nearest(part, RULES)}")
    return chain(*(RULES[part](**dict((parameters or {}).get(part, {}))) for part in parts))
