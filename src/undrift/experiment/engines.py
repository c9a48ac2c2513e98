"""Engines and devices by name."""

from __future__ import annotations

import functools
import os

import torch

from undrift.core.plugins import load
from undrift.core.words import unknown
from undrift.engines.auto import engine_for
from undrift.engines.local import TIMEOUT
from undrift.errors import ConfigError
from undrift.rounds.engine import MakeEngine

RAY = "undrift.engines.ray:ray_engine"
NAMES = ("local", "ray")
"""What can be named from Python; ``flower`` needs sites, so only ``undrift run`` starts it."""
DEVICES = ("cpu", "cuda", "mps", "meta")


def engine_named(
    name: str,
    address: str | None = None,
    cpus_per_worker: float = 1.0,
    gpus_per_worker: float = 0.0,
    timeout: float = TIMEOUT,
) -> MakeEngine:
    """What makes the engine of this name; ``package.module:name`` is a user's own."""
    if name == "local":
        return functools.partial(engine_for, timeout=timeout)
    if name == "ray":
        made: MakeEngine = load(RAY, "engine 'ray'", "ray")(address, cpus_per_worker, gpus_per_worker)
        return made
    if ":" in name:
        own: MakeEngine = load(name, f"engine {name!r}")
        return own
    if name == "flower":
        raise ConfigError("engine = 'flower': real sites are started with `undrift run` (docs/federation.md)")
    raise ConfigError(unknown("engine", name, NAMES))


def device_for(wanted: str) -> str:
    """The device to compute on, checked before anything is built on it.

    Whether there is a GPU is asked of its driver's management library, so that processes forked later can use it.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = wanted.partition(":")
    if kind not in DEVICES or (number and not number.isdigit()):
        raise ConfigError(unknown("device", wanted, ("auto", *DEVICES[:3])))
    there = {
        "cuda": torch.cuda.is_available() and int(number or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there.get(kind, True):
        raise ConfigError(f"device = {wanted!r}: there is no such device here")
    return wanted
