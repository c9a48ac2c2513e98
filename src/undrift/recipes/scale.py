"""A smaller version of an experiment, in a way that can be stated in one sentence each.

With factor ``F`` below 1:

- rounds: ``F`` times as many, at least 4;
- clients: ``F`` times as many, at least 10 (or all, where there are fewer), and in the scheme ``classes`` enough that
  every class has a client;
- data: ``F`` times as many samples, at least 20 a client, so that a client keeps its number of samples as long as
  the number of clients shrinks;
- cohort: the same share of the clients, at least 5 (or all that took part); where all took part, all do;
- server data: ``F`` times as many, at least one a class or one contributor (who gives no
  more than it has); files are used as they are;
- pre-training epochs: ``F`` times as many, at least 1; milestones move with the rounds.

Everything else (model, batch, rates, local work) stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

SIZES = {
    "cifar10": 50_000,
    "cifar100": 50_000,
    "fashion-mnist": 60_000,
    "mnist": 60_000,
    "emnist": 112_800,
    "stl10": 5_000,
    "digits": 1_442,
    "npz": 0,
    "synthetic": 0,
}
EMNIST_SIZES = {"balanced": 112_800, "sub47": 36_660}
CLASSES = {"cifar100": 100, "emnist": 47}
MIN_ROUNDS, MIN_CLIENTS, MIN_COHORT, MIN_SAMPLES = 4, 10, 5, 20


def scaled(settings: Mapping[str, Any], factor: float, *, rounds: int | None = None) -> dict[str, Any]:
    """Settings of the smaller experiment; ``rounds`` overrides the number of rounds."""
    out = {key: dict(value) if isinstance(value, Mapping) else value for key, value in settings.items()}
    if factor != 1.0:
        _shrink(out, factor)
    if rounds is not None:
        out["train"]["rounds"] = rounds
    return out


def samples_of(data: Mapping[str, Any]) -> int:
    """How many training samples a configuration uses."""
    if data.get("limit"):
        return int(data["limit"])
    name = data["name"]
    whole = EMNIST_SIZES.get(data.get("split", "balanced"), 112_800) if name == "emnist" else SIZES[name]
    if name == "emnist" and data.get("classes"):
        whole = whole * int(data["classes"]) // 47
    return int(data.get("samples", 10_000)) if name == "synthetic" else whole


def _shrink(out: dict[str, Any], factor: float) -> None:
    train, data, part = out["train"], out["data"], out["partition"]
    before, samples = part["clients"], samples_of(data)
    classes = int(data.get("classes") or CLASSES.get(data["name"], 10))
    least = math.ceil(classes / part["classes"]) if part["scheme"] == "classes" else MIN_CLIENTS
    clients = max(min(before, max(MIN_CLIENTS, least)), round(before * factor))
    part["clients"] = clients
    limit = min(samples, max(round(samples * factor), MIN_SAMPLES * clients))
    if samples:
        data["samples" if data["name"] == "synthetic" else "limit"] = limit
    if train.get("cohort") is not None:
        share = train["cohort"] / before
        train["cohort"] = min(clients, max(round(share * clients), min(train["cohort"], MIN_COHORT)))
    train["rounds"] = max(min(train["rounds"], MIN_ROUNDS), round(train["rounds"] * factor))
    if train.get("milestones"):
        train["milestones"] = [max(1, round(m * factor)) for m in train["milestones"]]
    if train.get("pretrain_epochs"):
        train["pretrain_epochs"] = max(1, round(train["pretrain_epochs"] * factor))
    if moved := out.get("algorithm", {}).get("fsl", {}).get("gamma_milestones"):
        out["algorithm"]["fsl"] = {
            **out["algorithm"]["fsl"],
            "gamma_milestones": [max(1, round(m * factor)) for m in moved],
        }
    if server := out.get("server_data"):
        _shrink_server(server, factor, classes, limit // clients // part.get("classes", 1) * part.get("classes", 1))


def _shrink_server(server: dict[str, Any], factor: float, classes: int, own: int) -> None:
    if server.get("size"):
        server["size"] = max(min(classes, server["size"]), round(server["size"] * factor))
    if server.get("contributors"):
        server["contributors"] = max(1, round(server["contributors"] * factor))
        server["samples"] = min(server["samples"], own)


def differences(full: Mapping[str, Any], small: Mapping[str, Any], prefix: str = "") -> list[str]:
    """What scaling changed, as ``key: before -> after``."""
    out = []
    for key in full.keys() | small.keys():
        a, b = full.get(key), small.get(key)
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            out += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            out.append(f"{prefix}{key}: {'all' if a is None else a} -> {'all' if b is None else b}")
    return sorted(out)
