"""Ways to damage text, numbers and files: seeded, so that what was found can be found again."""

from __future__ import annotations

import copy
import inspect
import random
import tomllib
import typing
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import BaseModel

from undrift.experiment.config import Config
from undrift.rules import RULES

ABSURD: list[Any] = [
    -1,
    0,
    1,
    2,
    3,
    7,
    2**31,
    2**32,
    2**63,
    2**64,
    -(2**63),
    10**9,
    10**12,
    10**18,
    0.0,
    -0.0,
    1e-320,
    1e-45,
    1e-30,
    0.5,
    0.999,
    1.0,
    1e30,
    1e38,
    1e200,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
    "",
    "x",
    "x" * 5000,
    "\x1b[31mred",
    "[/bold]",
    "nan",
    "../../etc/passwd",
    "/dev/zero",
    "/dev/null",
    "/",
    ".",
    "a\tb",
    "é" * 50,
    True,
    False,
    [],
    [0],
    [-1],
    [10**9],
    [1e400],
    ["x"],
    [[]],
    {},
    {"a": 1},
    {"name": "x"},
]
SLOW = {"rounds", "local_epochs", "local_steps", "epochs", "steps", "pretrain_epochs", "clients", "samples", "workers"}
"""Keys whose large values are allowed, and mean that somebody wants to wait."""
ALGORITHMS = [*RULES, "dsl"]
FINE: dict[str, list[Any]] = {
    "partition.scheme": ["iid", "classes", "shards", "dirichlet", "ratio", "given"],
    "partition.classes": [1, 2, 3],
    "partition.alpha": [0.1, 10.0],
    "partition.shards": [2],
    "partition.ratio": [0.5],
    "partition.min_samples": [1, 5],
    "partition.clients": [1, 2, 7],
    "partition.test": [0.3],
    "server_data.source": ["iid", "balanced", "clients", "file"],
    "server_data.size": [3, 6, 30],
    "server_data.contributors": [1, 2],
    "server_data.samples": [2],
    "server_data.exclusive": [True],
    "model.name": ["mlp", "linear", "cnn-cifar"],
    "model.hidden": [[], [1], [4, 3]],
    "model.initialisation": ["glorot"],
    "train.cohort": [1, 2, 6],
    "train.batch_size": [0, 1, 7, 500],
    "train.local_epochs": [1, 2],
    "train.local_steps": [1, 3],
    "train.lr": [1e-30, 1.0, 1e6, 1e30],
    "train.server_lr": ["sqrt", 0.1, 1e30],
    "train.weight_decay": [0.1, 1e6],
    "train.schedule": ["cosine", "multistep"],
    "train.milestones": [[1], [2, 1], [1, 3]],
    "train.decay": [0.5, 1e-30, 1e-200],
    "train.pretrain_epochs": [1],
    "train.weighting": ["uniform"],
    "train.eval_every": [1, 2],
    "train.drop_last": [True],
    "train.patience": [1, 2],
    "train.rounds": [0, 1],
    "attack.kind": ["sign-flip", "noise", "label-flip"],
    "attack.share": [0.0, 1.0],
    "attack.scale": [1e-30, 1e30],
    "measure.drift": [True],
    "measure.updates": [True],
    "measure.cka": [True, ["0"]],
    "measure.gradients": [True],
    "measure.classes": [True],
    "measure.clients": [True],
    "measure.skew": [True],
    "measure.split_variance": [True],
    "measure.every": [1, 2],
    "measure.targets": [[0.1, 0.9], [2.0]],
    "engine.precision": ["bf16"],
    "data.limit": [5, 50],
    "data.validation": [0.2, 0.99],
    "data.name": ["npz", "npz", "synthetic"],
    "data.classes": [2, 3, 9],
    "data.samples": [100, 200],
    "data.features": [1, 5],
    "data.heterogeneity": [0.0, 3.0],
    "data.augment": ["flip-crop"],
    "task.name": ["classification", "regression", "language-model"],
    "task.monitor": ["loss", "accuracy", "-loss"],
}
"""Values that may well be allowed, alone or together."""
LEFT_OUT = {"engine.name", "engine.address", "engine.federation", "log.mlflow", "log.wandb", "log.tensorboard"}
"""Keys that start other programs."""
KEYS = {
    section: [key for key in kind.model_fields if f"{section}.{key}" not in LEFT_OUT]
    for section, field in Config.model_fields.items()
    for kind in (field.annotation, *typing.get_args(field.annotation))
    if isinstance(kind, type) and issubclass(kind, BaseModel)
} | {"algorithm": ["name", *ALGORITHMS]}


def bytes_of(draw: random.Random, content: bytes) -> bytes:
    """Some bytes flipped, cut out, doubled, put in or cut off."""
    raw = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = draw.randrange(len(raw) + 1)
        kind = draw.choice(["flip", "flip", "set", "cut", "double", "insert", "truncate", "swap"])
        if kind == "flip" and at < len(raw):
            raw[at] ^= 1 << draw.randrange(8)
        elif kind == "set" and at < len(raw):
            raw[at] = draw.choice((0, 10, 34, 39, 44, 45, 48, 57, 91, 93, 123, 125, 255))
        elif kind == "cut":
            del raw[at : at + draw.choice((1, 2, 10, 100))]
        elif kind == "double":
            raw[at:at] = raw[at : at + draw.choice((1, 5, 40))]
        elif kind == "insert":
            raw[at:at] = draw.choice((b"\0", b"[" * 50, b"9" * 30, b"\xff\xfe", b'"', b"\n", b"nan", b"-1e999"))
        elif kind == "truncate":
            del raw[at:]
        elif kind == "swap" and len(raw) > 20:
            end = draw.randrange(len(raw))
            raw[at:], raw[:end] = raw[:end], raw[at:]
    return bytes(raw)


def settings_of(draw: random.Random, text: str) -> bytes:
    """A configuration with other values, fine and absurd ones, other names, missing or unknown keys."""
    settings = tomllib.loads(text)
    for _ in range(draw.choice((0, 1, 2, 4))):
        key = draw.choice(list(FINE))
        _put(settings, key, draw.choice(FINE[key]))
    if draw.random() < 0.5:
        settings["algorithm"] = _algorithm(draw)
    for _ in range(draw.choice((0, 0, 1, 1, 2))):
        _spoil(draw, settings)
    try:
        return tomli_w.dumps(settings).encode()
    except (ValueError, TypeError):
        return b"x = "


def _algorithm(draw: random.Random) -> dict[str, Any]:
    """One or several algorithms, with parameters of which some are absurd."""
    parts = draw.sample(ALGORITHMS, draw.choice((1, 1, 1, 2, 2, 3)))
    chosen: dict[str, Any] = {"name": "+".join(parts)}
    for part in parts:
        known = list(inspect.signature(RULES[part]).parameters) if part in RULES else []
        if known and draw.random() < 0.5:
            fine = [0, 1, 2, 4, 0.0, 0.1, 0.5, 1.0, 2.0, 1e30, True]
            value = copy.deepcopy(draw.choice(fine if draw.random() < 0.8 else ABSURD))
            key = draw.choice(known)
            chosen[part] = {} if _takes_long(key, value) else {key: value}
    return chosen


def _takes_long(key: str, value: Any) -> bool:
    return key in SLOW and isinstance(value, int) and 100 < value < 2**31


def _put(settings: dict[str, Any], key: str, value: Any) -> None:
    section, _, name = key.partition(".")
    if isinstance(settings.setdefault(section, {}), dict):
        settings[section][name] = value


def _spoil(draw: random.Random, settings: dict[str, Any]) -> None:
    """One absurd value, missing key, unknown key or section."""
    section = draw.choice([name for name, value in settings.items() if isinstance(value, dict)] or ["data"])
    kind = draw.choice(["value", "value", "value", "drop", "add", "section"])
    value = copy.deepcopy(draw.choice(ABSURD))  # what is put into it later stays out of the list
    if kind == "value":
        key = draw.choice(KEYS.get(section, ["name"]))
        if not _takes_long(key, value):
            _put(settings, f"{section}.{key}", value)
    elif kind == "drop" and settings.get(section):
        del settings[section][draw.choice(list(settings[section]))]
    elif kind == "add":
        _put(settings, f"{section}.{draw.choice(('x', 'lrr', 'name ', 'seed', 'a.b'))}", value)
    else:
        settings[draw.choice((*settings, "other"))] = value


def folder(draw: random.Random, path: Path) -> str:
    """Damage one file of a folder; returns which and how."""
    files = sorted(p for p in path.rglob("*") if p.is_file())
    file = draw.choice(files)
    kind = draw.choice(["bytes", "bytes", "bytes", "gone", "folder", "empty", "lines", "other", "rubbish"])
    content = file.read_bytes()
    if kind == "bytes":
        file.write_bytes(bytes_of(draw, content))
    elif kind == "gone":
        file.unlink()
    elif kind == "folder":
        file.unlink()
        file.mkdir()
    elif kind == "empty":
        file.write_bytes(b"")
    elif kind == "lines":
        lines = content.split(b"\n")
        draw.shuffle(lines)
        file.write_bytes(b"\n".join(lines[: draw.randrange(len(lines) + 1)] + lines[:1]))
    elif kind == "other":
        file.write_bytes(draw.choice(files).read_bytes() if draw.choice(files).exists() else b"")
    else:
        file.write_bytes(draw.randbytes(draw.randrange(300)))
    return f"{file.relative_to(path)}: {kind}"
