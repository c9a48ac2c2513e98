"""undrift: federated learning when the clients' data are not alike.

Drift controls that compose: every algorithm is FedAvg plus rules, joined with ``+``.
"""

import importlib
from typing import TYPE_CHECKING, Any

from undrift.core.processor import avoid_broken_amx as _avoid_broken_amx
from undrift.core.version import VERSION

_avoid_broken_amx()  # before anything computes with PyTorch

if TYPE_CHECKING:  # what is asked for is imported then (see __getattr__): PyTorch alone takes more than a second
    from undrift.data.federation import Federation, from_clients
    from undrift.errors import ConfigError, DataError, DivergedError, InputError, RunError, UndriftError
    from undrift.experiment import callbacks
    from undrift.experiment.cuts import cut_table
    from undrift.experiment.simulate import simulate
    from undrift.rounds.loop import Result
    from undrift.rules import (
        Centralised,
        Choice,
        Clip,
        Dp,
        Ds,
        FedAdc,
        FedDyn,
        FedOpt,
        FedProx,
        Fsl,
        Krum,
        Median,
        MiniBatchSfl,
        Moon,
        Scaffold,
        SflV1,
        SflV2,
        SlowMo,
        TopK,
        Trimmed,
        algorithm,
        attack,
        fedavgm,
        fednova,
        fedpvr,
        personal,
        quantise,
    )
    from undrift.rules.chain import Chain, chain
    from undrift.rules.masked import masked
    from undrift.rules.rule import ClientAt, DrawAt, FedAvg, Owns, Rule, ServerAt

    fedavg = FedAvg
    centralised = Centralised
    choice = Choice
    clip = Clip
    dp = Dp
    ds = Ds
    fedadc = FedAdc
    feddyn = FedDyn
    fedopt = FedOpt
    fedprox = FedProx
    fsl = Fsl
    krum = Krum
    median = Median
    minibatch_sfl = MiniBatchSfl
    moon = Moon
    scaffold = Scaffold
    sfl_v1 = SflV1
    sfl_v2 = SflV2
    slowmo = SlowMo
    topk = TopK
    trimmed = Trimmed

__version__ = VERSION

_PLACES = {
    "data.federation": ("Federation", "from_clients"),
    "errors": ("ConfigError", "DataError", "DivergedError", "InputError", "RunError", "UndriftError"),
    "experiment.cuts": ("cut_table",),
    "experiment.simulate": ("simulate",),
    "rounds.loop": ("Result",),
    "rules": ("algorithm", "attack", "fedavgm", "fednova", "fedpvr", "personal", "quantise"),
    "rules.chain": ("Chain", "chain"),
    "rules.masked": ("masked",),
    "rules.rule": ("ClientAt", "DrawAt", "FedAvg", "Owns", "Rule", "ServerAt"),
}
_RULES = {
    "fedavg": "FedAvg",
    "centralised": "Centralised",
    "choice": "Choice",
    "clip": "Clip",
    "dp": "Dp",
    "ds": "Ds",
    "fedadc": "FedAdc",
    "feddyn": "FedDyn",
    "fedopt": "FedOpt",
    "fedprox": "FedProx",
    "fsl": "Fsl",
    "krum": "Krum",
    "median": "Median",
    "minibatch_sfl": "MiniBatchSfl",
    "moon": "Moon",
    "scaffold": "Scaffold",
    "sfl_v1": "SflV1",
    "sfl_v2": "SflV2",
    "slowmo": "SlowMo",
    "topk": "TopK",
    "trimmed": "Trimmed",
}
"""Rules are classes; here they are called like functions."""
_MODULES = (
    "core",
    "data",
    "diagnose",
    "engines",
    "errors",
    "experiment",
    "federation",
    "measure",
    "models",
    "recipes",
    "report",
    "rounds",
    "rules",
    "tasks",
)


def __getattr__(name: str) -> Any:
    """What the package offers, imported when it is first asked for."""
    if name == "callbacks":
        found: Any = importlib.import_module("undrift.experiment.callbacks")
    elif name in _RULES or name in _RULES.values():
        found = getattr(importlib.import_module("undrift.rules"), _RULES.get(name, name))
    elif name in _MODULES:
        found = importlib.import_module(f"undrift.{name}")
    else:
        place = next((place for place, names in _PLACES.items() if name in names), None)
        if place is None:
            raise AttributeError(f"module 'undrift' has no attribute {name!r}")
        found = getattr(importlib.import_module(f"undrift.{place}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*__all__, *globals()})


def dsl(share: float = 1.0, **server_learning: object) -> "Chain":
    """Data sharing with server learning: ``ds(share) + fsl(**server_learning)``."""
    from undrift.rules import Ds, Fsl

    return Ds(share) + Fsl(**server_learning)  # type: ignore[arg-type]


__all__ = [
    "Chain",
    "ClientAt",
    "ConfigError",
    "DataError",
    "DivergedError",
    "DrawAt",
    "FedAvg",
    "Federation",
    "InputError",
    "Owns",
    "Result",
    "Rule",
    "RunError",
    "ServerAt",
    "UndriftError",
    "__version__",
    "algorithm",
    "attack",
    "callbacks",
    "centralised",
    "chain",
    "choice",
    "clip",
    "cut_table",
    "dp",
    "ds",
    "dsl",
    "fedadc",
    "fedavg",
    "fedavgm",
    "feddyn",
    "fednova",
    "fedopt",
    "fedprox",
    "fedpvr",
    "from_clients",
    "fsl",
    "krum",
    "masked",
    "median",
    "minibatch_sfl",
    "moon",
    "personal",
    "quantise",
    "scaffold",
    "sfl_v1",
    "sfl_v2",
    "simulate",
    "slowmo",
    "topk",
    "trimmed",
]
