# ruff: noqa: E501 - tables
"""Ways to damage text, numbers and files: seeded, so that what was found can be found again."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

ABSURD: list[Any] = [
    -1, 0, 1, 2, 3, 7, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**9, 10**12, 10**18, 0.0, -0.0, 1e-320, 1e-45, 1e-30, 0.5,
    0.999, 1.0, 1e30, 1e38, 1e200, 1e308, float("nan"), float("inf"), float("-inf"), "", "x", "x" * 5000, "\x1b[31mred",
    "[/bold]", "nan", "../../etc/passwd", "/dev/zero", "/dev/null", "/", ".", "a\tb", "é" * 50, True, False, [], [0], [-1],
    [10**9], [1e400], ["x"], [[]], {}, {"a": 1}, {"name": "x"},
]  # fmt: skip
SLOW = {"rounds", "local_epochs", "local_steps", "epochs", "steps", "pretrain_epochs", "clients", "samples", "workers"}
"""Keys whose large values are allowed, and mean that somebody wants to wait."""
NAMES = {
    "algorithm": [
        "fedavg",
        "fedprox",
        "scaffold",
        "fedpvr",
        "feddyn",
        "slowmo",
        "fedadc",
        "fsl",
        "ds",
        "dsl",
        "centralised",
        "sfl-v1",
        "minibatch-sfl",
    ],
    "scheme": ["iid", "classes", "shards", "dirichlet", "ratio", "given"],
    "model": ["mlp", "linear", "cnn-cifar", "resnet8", "vgg11"],
}


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
    """A configuration with some absurd values, other names, missing or unknown keys."""
    settings = tomllib.loads(text)
    for _ in range(draw.choice((1, 1, 2, 3, 5))):
        section = draw.choice([name for name, value in settings.items() if isinstance(value, dict)])
        kind = draw.choice(["value", "value", "value", "name", "drop", "add", "section"])
        keys = KEYS.get(section, ["name"])
        if kind == "value":
            key = draw.choice(keys)
            value = draw.choice(ABSURD)
            if key in SLOW and isinstance(value, int) and 100 < value < 2**31:
                continue
            settings[section][key] = value
        elif kind == "name":
            chosen = {"algorithm": "+".join(draw.sample(NAMES["algorithm"], draw.choice((1, 1, 2))))}
            chosen |= {key: draw.choice(NAMES[key]) for key in ("scheme", "model")}
            for part, key in (("algorithm", "name"), ("partition", "scheme"), ("model", "name")):
                if isinstance(settings.setdefault(part, {}), dict):
                    settings[part][key] = chosen["scheme" if part == "partition" else part]
        elif kind == "drop" and settings[section]:
            del settings[section][draw.choice(list(settings[section]))]
        elif kind == "add":
            settings[section][draw.choice(("x", "lrr", "name ", "seed", "a.b"))] = draw.choice(ABSURD)
        else:
            settings[draw.choice((*settings, "other"))] = draw.choice(ABSURD)
            if not any(isinstance(value, dict) for value in settings.values()):
                break
    try:
        return tomli_w.dumps(settings).encode()
    except (ValueError, TypeError):
        return b"x = "


KEYS = {
    "data": [
        "name",
        "path",
        "root",
        "split",
        "classes",
        "limit",
        "augment",
        "validation",
        "samples",
        "features",
        "heterogeneity",
        "label",
        "client",
    ],
    "partition": ["scheme", "clients", "alpha", "classes", "shards", "ratio", "min_samples", "file", "seed", "test"],
    "server_data": ["source", "size", "contributors", "samples", "path", "exclusive"],
    "model": ["name", "norm", "width", "hidden", "initialisation", "init"],
    "algorithm": ["name", "fedprox", "fsl", "feddyn", "scaffold"],
    "train": [
        "cohort",
        "batch_size",
        "lr",
        "server_lr",
        "weight_decay",
        "schedule",
        "lr_min",
        "milestones",
        "decay",
        "pretrain_lr",
        "weighting",
        "eval_every",
        "drop_last",
        "patience",
        "local_steps",
        "local_epochs",
    ],
    "engine": [
        "workers",
        "precision",
        "device",
        "cpus_per_worker",
        "checkpoint_seconds",
        "min_sites",
        "round_timeout",
        "timeout",
    ],
    "measure": ["targets", "every", "drift", "updates", "cka", "gradients", "classes", "clients", "skew"],
}


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
