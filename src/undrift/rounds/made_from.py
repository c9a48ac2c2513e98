"""What a run is made from besides its settings: data, loss, starting model, versions: nothing else is it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import torch

from undrift.core.version import VERSION
from undrift.rounds.work import Work

CHANGES = {
    "data": ("clients' data", "partition", "test data", "validation data", "server data", "loss", "starting model"),
    "versions": ("undrift", "torch", "numpy", "instructions"),
}
"""What may be accepted as changed, by the name under which it is."""


def made_from(work: Work) -> dict[str, str]:
    """A short text for each part; another one where the numbers of the run would be others."""
    federation = work.federation
    samples = {
        "clients' data": federation.pool,
        "test data": federation.test,
        "validation data": federation.validation,
        "server data": federation.server,
    }
    kind = f"{work.loss.__module__}.{getattr(work.loss, '__qualname__', type(work.loss).__qualname__)}"
    return {name: "none" if data is None else data.fingerprint() for name, data in samples.items()} | {
        "partition": _digest(federation.described()),
        "loss": f"{work.task.name}, {kind}",
        "starting model": _digest(_bytes(tensor) for tensor in work.module.state_dict().values()),
        "undrift": VERSION,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def difference(before: Mapping[str, str], now: Mapping[str, str], kind: str) -> str:
    """What has changed, in words; empty: nothing."""
    for name in CHANGES[kind]:
        if before.get(name, now.get(name)) != now.get(name):
            said = f" ({before[name]}, now {now.get(name)})" if kind == "versions" or name == "loss" else ""
            return f"the {name} changed since the run began{said}"
    return ""


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
