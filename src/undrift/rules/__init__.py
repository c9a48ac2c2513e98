"""The papers' algorithms, one file for each family, and their names in configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from undrift.core.plugins import own, place_of
from undrift.core.trouble import describe
from undrift.core.words import nearest
from undrift.errors import ConfigError
from undrift.rules.attack import attack
from undrift.rules.chain import Chain, chain
from undrift.rules.choice import Choice
from undrift.rules.compress import TopK, quantise
from undrift.rules.data import Centralised, Ds
from undrift.rules.feddyn import FedDyn
from undrift.rules.fednova import fednova
from undrift.rules.fedopt import FedOpt, fedavgm
from undrift.rules.fedprox import FedProx
from undrift.rules.fsl import Fsl
from undrift.rules.momentum import FedAdc, SlowMo
from undrift.rules.moon import Moon
from undrift.rules.personal import personal
from undrift.rules.privacy import Dp
from undrift.rules.robust import Clip, Krum, Median, Trimmed
from undrift.rules.rule import FedAvg, Rule
from undrift.rules.scaffold import Scaffold, fedpvr
from undrift.rules.split import MiniBatchSfl, SflV1, SflV2

__all__ = [
    "RULES",
    "Centralised",
    "Choice",
    "Clip",
    "Dp",
    "Ds",
    "FedAdc",
    "FedAvg",
    "FedDyn",
    "FedOpt",
    "FedProx",
    "Fsl",
    "Krum",
    "Median",
    "MiniBatchSfl",
    "Moon",
    "Scaffold",
    "SflV1",
    "SflV2",
    "SlowMo",
    "TopK",
    "Trimmed",
    "algorithm",
    "attack",
    "fedavgm",
    "fednova",
    "fedpvr",
    "key_of",
    "maker_of",
    "named",
    "parts_of",
    "personal",
    "quantise",
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
    "fedopt": FedOpt,
    "fedavgm": fedavgm,
    "fednova": fednova,
    "moon": Moon,
    "personal": personal,
    "dp": Dp,
    "topk": TopK,
    "quantise": quantise,
    "median": Median,
    "trimmed": Trimmed,
    "krum": Krum,
    "clip": Clip,
    "choice": Choice,
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


def key_of(part: str) -> str:
    """Where the parameters of an algorithm stand: its name, or what follows the colon in ``package.module:name``."""
    return part.rpartition(":")[2]


def maker_of(part: str, where: str = "algorithm.name") -> Callable[..., Rule]:
    """What makes a rule: one of ours by its name, or a user's own (``package.module:name``)."""
    if part in RULES:
        return RULES[part]
    if place_of(part) is None:
        raise ConfigError(f"{where}: no algorithm {part!r}; {nearest(part, RULES)}")
    found: Callable[..., Rule] = own(part, "algorithm.name", RULES)
    if not callable(found):
        raise ConfigError(f"{where}: {part!r} makes no rule")
    return found


def named(name: str, parameters: Mapping[str, Mapping[str, Any]] | None = None) -> Chain:
    """The rule of a configuration: one name, or several joined by ``+``, each with its own parameters."""
    return chain(*(_made(name, part, dict((parameters or {}).get(key_of(part), {}))) for part in parts_of(name)))


def _made(name: str, part: str, parameters: dict[str, Any]) -> Rule:
    maker = maker_of(part, f"algorithm.name = {name!r}")
    if part in RULES:
        return maker(**parameters)
    try:
        rule = maker(**parameters)
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"algorithm.name = {name!r}: making {part!r} failed: {describe(error)}") from None
    if not isinstance(rule, Rule):
        raise ConfigError(f"algorithm.name = {name!r}: {part!r} gives {type(rule).__name__}, no undrift.Rule")
    return rule


def algorithm(name: str, **parameters: Mapping[str, Any]) -> Chain:
    """The chain of these names, as in a configuration: ``algorithm("fedpvr+fsl", fsl={"gamma": 0.5})``.

    ``_`` in a keyword stands for ``-`` in a name where it must (``minibatch_sfl={"cut": 1}``).
    """
    keys = {key_of(part) for part in parts_of(name)}
    given = {}
    for key, values in parameters.items():
        found = key if key in keys else key.replace("_", "-")
        if found not in keys:
            raise ConfigError(f"{key}: {name!r} has no such part; {nearest(key, keys)}")
        given[found] = values
    try:
        return named(name, given)
    except TypeError as error:
        raise ConfigError(f"algorithm {name!r}: {error}") from None
