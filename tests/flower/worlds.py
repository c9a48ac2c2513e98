"""A small federation for tests: each site's file, the same data pooled, and an exchange without processes."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import RecordDict

from undrift.errors import UndriftError
from undrift.experiment.config import Config, parse
from undrift.experiment.from_config import run_config
from undrift.federation.engine import Answer
from undrift.federation.processes import free_port
from undrift.federation.setup import SiteFolder
from undrift.federation.site import Site
from undrift.rounds.loop import Result

SITES = ("east", "north", "south")
SIZES = (40, 55, 32)
ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "scaffold": {},
    "fedpvr+fsl": {"fedpvr": {"layers": 1}, "fsl": {"gamma": 0.5}},
    "fedadc": {},
}

TRAIN: dict[str, Any] = {}
"""Further settings of the training."""


def server_port() -> int:
    """A port for a server that will be started again.

    It lies below those that the system gives to connections: one of them could hold the port in between.
    """
    with contextlib.suppress(OSError):
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        below = range(max(1024, first // 2), first)
        for port in random.SystemRandom().sample(below, min(100, len(below))):
            with contextlib.suppress(OSError), socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
                return port
    return free_port()


def write_data(folder: Path) -> None:
    """``all.npz`` for simulations, ``server.npz`` and ``d0.npz`` for the server, ``SITE.npz`` for each site."""
    draw = np.random.default_rng(0)
    plane = draw.normal(size=(8, 3))

    def some(count: int, shift: float) -> tuple[Any, Any]:
        x = (draw.normal(size=(count, 8)) + shift).astype(np.float32)
        return x, (x @ plane).argmax(1)

    pairs = [some(count, 0.3 * (i - 1)) for i, count in enumerate(SIZES)]
    test, own = some(60, 0.0), some(20, 0.0)
    for name, (x, y) in zip(SITES, pairs, strict=True):
        np.savez(folder / f"{name}.npz", x=x, y=y)
    np.savez(folder / "server.npz", x_test=test[0], y_test=test[1])
    np.savez(folder / "d0.npz", x=own[0], y=own[1])
    np.savez(
        folder / "all.npz",
        x_train=np.concatenate([x for x, _ in pairs]),
        y_train=np.concatenate([y for _, y in pairs]),
        x_test=test[0],
        y_test=test[1],
        client=np.repeat(np.arange(3), SIZES),
    )


def settings(folder: Path, algorithm: str, rounds: int, **more: Any) -> dict[str, Any]:
    """A configuration, but for data and engine."""
    parameters = ALGORITHMS.get(algorithm, {})
    return {
        "server_data": {"source": "file", "path": str(folder / "d0.npz")},
        "model": {"name": "mlp", "hidden": [16]},
        "algorithm": {"name": algorithm, **parameters},
        "train": {"rounds": rounds, "batch_size": 10, "lr": 0.05} | TRAIN,
    } | more


def local(folder: Path, algorithm: str, rounds: int, workers: int = 0) -> Result:
    """The simulation to compare with."""
    config = parse(
        settings(folder, algorithm, rounds)
        | {
            "data": {"name": "npz", "path": str(folder / "all.npz")},
            "partition": {"scheme": "given"},
            "engine": {"workers": workers},
        }
    )
    return run_config(config, None)


def federated(folder: Path, algorithm: str, rounds: int, server: Path, **engine: Any) -> Config:
    """The same run on sites."""
    return parse(
        settings(folder, algorithm, rounds)
        | {
            "data": {"name": "npz", "path": str(folder / "server.npz")},
            "engine": {"name": "flower", "federation": str(server), "checkpoint_seconds": 0.0} | engine,
        }
    )


Tamper = Callable[[str, int, RecordDict], Answer]


class Nearby:
    """Sites in this process: the messages of a real federation without the network."""

    def __init__(self, sites: Path, data: Path, names: Sequence[str] = SITES) -> None:
        self.sites = {name: Site(SiteFolder.read(sites / name), data / f"{name}.npz") for name in names}
        self.away: set[str] = set()
        self.tamper: Tamper = lambda name, round, reply: reply
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def await_sites(self, names: Sequence[str], enough: int, timeout: float) -> list[str]:
        """Those that are not away."""
        return [name for name in names if name not in self.away]

    def ask(self, what: str, contents: Mapping[str, RecordDict], timeout: float) -> dict[str, Answer]:
        """Call the sites, one after the other."""
        self.asked.append((what, tuple(contents)))
        return {name: self._one(what, name, content) for name, content in contents.items()}

    def _one(self, what: str, name: str, content: RecordDict) -> Answer:
        try:
            reply: RecordDict = getattr(self.sites[name], what)(content)
        except UndriftError as error:
            return str(error)
        return self.tamper(name, parts(content)[0]["round"], reply) if what == "train" else reply


def parts(content: RecordDict) -> tuple[dict[str, Any], Any]:
    """A message's plain values, and its vector as Flower holds it (None: there is none)."""
    vector: Any = content.get("vector")
    return dict(content["meta"]), None if vector is None else vector["vector"]


def lost(lines: list[dict[str, Any]]) -> dict[int, list[str]]:
    """Why clients were lost, by round."""
    return {line["round"]: [item["reason"] for item in line["lost"]] for line in lines}


def read_json(path: Path) -> Any:
    """A JSON file."""
    return json.loads(path.read_text())
