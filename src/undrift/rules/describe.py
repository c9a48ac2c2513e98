"""What every rule does, takes, owns, sends and cannot go with: found out from the rules themselves."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn

from undrift.core.tree import nbytes
from undrift.core.vector import FlatModel
from undrift.errors import ConfigError
from undrift.rules import RULES
from undrift.rules.chain import chain
from undrift.rules.rehearsal import rehearse
from undrift.rules.rule import FedAvg, Owns, Rule

ALONE = "has no rounds between clients"


@dataclass(frozen=True)
class Messages:
    """What is sent and kept, in models."""

    down: float
    up: float
    kept: float


@dataclass(frozen=True)
class Description:
    """One rule."""

    name: str
    does: str
    parameters: dict[str, Any]
    owns: tuple[str, ...]
    messages: Messages | None
    """None: there are no rounds of whole models."""
    uniform: bool
    against: dict[str, tuple[str, ...]]
    """Reasons, and the rules that it cannot go with for each."""
    only_before: tuple[str, ...]
    """Rules that must stand after it."""


def describe(name: str) -> Description:
    """What there is to know about a rule."""
    maker = RULES[name]
    rule = maker()
    against, before = _refusals(name)
    return Description(
        name,
        (inspect.getdoc(maker) or "").split("\n\n")[0].replace("\n", " ").replace("``", "'"),
        {} if maker is FedAvg else {key: p.default for key, p in inspect.signature(maker).parameters.items()},
        tuple(sorted(what.value for what in rule.owns)),
        None if rule.owns & {Owns.ROUND_KIND, Owns.EVERYTHING} else _messages(rule),
        rule.uniform,
        against,
        before,
    )


def _messages(rule: Rule) -> Messages:
    """Tried out on a small model of two layers with a norm layer."""
    module = nn.Sequential(nn.Linear(63, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 32))
    whole = chain(rule)
    model = FlatModel(module, personal=whole.personal_layers(FlatModel(module).layout))
    size = nbytes({"x": model.weights})
    x = model.weights[: model.shared.size]
    found = rehearse(whole.bind(model.shared), x, model.shared.personal)
    down = nbytes({"x": x, "down": found.down})
    return Messages(down / size, nbytes(found.sent) / size, nbytes(found.kept) / size)


def _refusals(name: str) -> tuple[dict[str, tuple[str, ...]], tuple[str, ...]]:
    against: dict[str, tuple[str, ...]] = {}
    before = []
    for other in RULES:
        if other in (name, "fedavg") or name == "fedavg":
            continue
        first, second = _reason(name, other), _reason(other, name)
        if first and second:
            against[first] = (*against.get(first, ()), other)
        elif second:
            before.append(other)
    return against, tuple(before)


def _reason(one: str, other: str) -> str | None:
    """Why two rules cannot go together in this order."""
    try:
        chain(RULES[one](), RULES[other]())
    except ConfigError as error:
        reason = str(error).rpartition("cannot be combined: ")[2]
        return ALONE if ALONE in reason else reason
    return None
