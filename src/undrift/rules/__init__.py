"""The papers' algorithms, one file for each family, and their names in configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from undrift.errors import ConfigError
from undrift.rule import Chain, FedAvg, Rule, chain
from undrift.rules.data import Centralised, Ds
from undrift.rules.feddyn import FedDyn
from undrift.rules.fedprox import FedProx
from undrift.rules.fsl import Fsl
from undrift.rules.momentum import FedAdc, SlowMo
from undrift.rules.scaffold import Scaffold, fedpvr
from undrift.split.algorithms import MiniBatchSfl, SflV1, SflV2

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


def named(name: str, parameters: Mapping[str, Mapping[str, Any]] | None = None) -> Chain:
    """The rule of a configuration: one name, or several joined by ``+``, each with its own parameters."""
    parts = name.replace("dsl", "ds+fsl").split("+")
    for part in parts:
        if part not in RULES:
            raise ConfigError(f"algorithm.name = {name!r}: no algorithm {part!r}; there are {', '.join(RULES)}")
    return chain(*(RULES[part](**dict((parameters or {}).get(part, {}))) for part in parts))
