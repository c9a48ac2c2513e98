"""Small made-up images in the form of a real data set, for trying a recipe out where the data set is absent.

Each class is a fixed random pattern, each sample that pattern plus noise. Results on them say that a recipe runs,
nothing about a paper; they are labelled as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

FORMS = {
    "cifar10": (32, 3, 10),
    "cifar100": (32, 3, 100),
    "stl10": (32, 3, 10),
    "fashion-mnist": (28, 1, 10),
    "mnist": (28, 1, 10),
    "emnist": (28, 1, 47),
}
TEST, TEST_LARGE = 100, 20
"""Test samples; fewer for a network on which they take long."""


def stand_in(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The same settings on made-up data."""
    out = {key: dict(value) if isinstance(value, Mapping) else value for key, value in settings.items()}
    data = out["data"]
    if data["name"] not in FORMS:
        return out
    size, channels, classes = FORMS[data["name"]]
    classes = data.pop("classes", None) or classes
    samples = max(data.get("limit") or 0, 4 * classes, 20)
    tests = max(TEST_LARGE if settings["model"]["name"] == "resnet18" else TEST, classes)
    path = folder / f"stand-in-{size}x{size}x{channels}-{classes}-{samples}-{tests}.npz"
    if not path.exists():
        write(path, size, channels, classes, samples, tests)
    for key in ("split", "root", "limit"):
        data.pop(key, None)
    data |= {"name": "npz", "path": str(path.absolute())}
    out["partition"]["min_samples"] = 1
    server = out.get("server_data")
    if server and server.get("source") == "file":
        out["server_data"] = {"source": "balanced", "size": classes}
    return out


def write(path: Path, size: int, channels: int, classes: int, samples: int, tests: int) -> None:
    """Make the file."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (classes, size, size, channels))
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for part, count in (("train", samples), ("test", tests)):
        y = np.arange(count) % classes
        noise = rng.integers(0, 256, (count, size, size, channels))
        arrays[f"x_{part}"] = ((patterns[y] + noise) // 2).astype(np.uint8)
        arrays[f"y_{part}"] = y.astype(np.int64)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
