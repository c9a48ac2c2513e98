"""A federation of real processes on loopback, TLS and authentication on; the commands are those of the guide.

They are forked from this process, which has what they import: the daemons that they start are processes as always.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import numpy as np
import torch
from flwr.app import RecordDict
from worlds import lost, parts, read_json, server_port, write_data

from forked import Command, until
from undrift.core.files import read_lines
from undrift.experiment.config import read
from undrift.experiment.from_config import data_of, run_config
from undrift.federation.messages import vector_of
from undrift.federation.setup import init

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:(flwr|google|httpx|ray|websockets|uvicorn).*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
    pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"),
]
ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "federation.md").read_text()


def blocks(kind: str) -> list[str]:
    """The guide's blocks of one language."""
    return re.findall(rf"```{kind}\n(.*?)```", GUIDE, flags=re.DOTALL)


COMMANDS = [line[2:] for block in blocks("console") for line in block.splitlines() if line.startswith("$ ")]


class World:
    """A working folder and the processes that were started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, Command] = {}

    def start(self, name: str, *words: str) -> None:
        """``undrift WORDS``, or ``python SCRIPT WORDS``."""
        place = {"cwd": self.folder, "said": self.log(name)}
        if words[0] == "python":
            self.running[name] = Command(*words[2:], script=Path(words[1]), **place)
        else:
            self.running[name] = Command(*words[1:], **place)

    def carry_out(self, *words: str) -> str:
        """A command that comes to its end; returns what it said."""
        self.start("command", *words)
        code, said = self.running.pop("command").end(400)
        assert code == 0, said
        return said

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def says(self, name: str, text: str) -> bool:
        return self.log(name).exists() and text in self.log(name).read_text()

    def kill(self, name: str) -> None:
        self.running.pop(name).kill()

    def stop(self) -> None:
        for process in self.running.values():
            process.signal(signal.SIGTERM)
        for process in self.running.values():
            try:
                process.wait(15)
            except AssertionError:
                process.kill()
        until(lambda: not self.left(), 10, lambda: str(self.left()))

    def left(self) -> list[str]:
        """Processes whose command names this folder: there must be none in the end."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if str(self.folder) in line and int(path.parent.name) != os.getpid():
                    found.append(f"{path.parent.name}: {line}")
        return found


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The guide's federation, started with the guide's commands, only on a free port; one site can go astray."""
    world = World(tmp_path_factory.mktemp("federation"))
    write_data(world.folder)
    (world.folder / "study.toml").write_text(blocks("toml")[0])
    (world.folder / "cut.py").write_text(blocks("python")[0])
    try:
        for command in COMMANDS[:3]:
            world.carry_out(*shlex.split(command.replace("--port 8000", f"--port {server_port()}")))
        for command in COMMANDS[3:7]:
            words = shlex.split(command)
            name = Path(words[3]).name
            if name == "server":
                words += ["--host", "127.0.0.1"]
            if name == "south":
                rogue = Path(__file__).with_name("rogue_site.py")
                words = ["python", str(rogue), words[3], words[5], str(world.folder / "orders.json")]
            world.start(name, *words)
        until(lambda: world.says("server", "serving"), 240, world.log("server").read_text)
        yield world
    finally:
        world.stop()


def test_the_guide_from_simulation_to_federation_with_the_server_killed(world: World) -> None:
    assert [c.split()[:3] for c in COMMANDS[3:7]] == [["undrift", "federation", "serve"]] + [
        ["undrift", "federation", "join"]
    ] * 3
    first, resumed = (shlex.split(command) for command in COMMANDS[7:])
    out = world.folder / "runs" / "hospitals"
    world.start("run", *first, "--set", "engine.checkpoint_seconds=0.0")
    until(
        lambda: (out / "checkpoint" / "state.json").exists() and len(read_lines(out / "rounds.jsonl")) >= 2,
        240,
        world.log("run").read_text,
    )
    world.kill("run")
    world.kill("server")
    # Killed outright, it takes Flower's process with it.
    until(lambda: not [line for line in world.left() if " superlink " in line], 15, lambda: str(world.left()))
    world.start("server", *shlex.split(COMMANDS[3]), "--host", "127.0.0.1")
    until(lambda: world.log("server").read_text().count("serving") == 2, 240, world.log("server").read_text)
    assert "final accuracy" in world.carry_out(*resumed)
    assert [line["round"] for line in read_lines(out / "rounds.jsonl")] == [1, 2, 3, 4, 5]
    simulated = world.folder / "runs" / "simulation" / "model.safetensors"
    assert simulated.read_bytes() == (out / "model.safetensors").read_bytes()


def test_a_site_killed_bad_updates_and_strangers(world: World) -> None:
    kinds = {"2": "nan", "3": "shape", "4": "dtype", "5": "inf", "6": "round", "7": "larger"}
    (world.folder / "orders.json").write_text(json.dumps(kinds))
    strangers = _strangers(world)
    out = world.folder / "runs" / "killed"
    words = shlex.split(COMMANDS[7])
    words[words.index("runs/hospitals")] = str(out)
    world.start(
        "run",
        *words,
        "--set",
        "train.rounds=60",
        "--set",
        "engine.round_timeout=15",
        "--set",
        "engine.checkpoint_seconds=0.0",
    )
    log = world.log("run").read_text

    def lines() -> list[dict[str, Any]]:
        return read_lines(out / "rounds.jsonl")

    until(lambda: len(lines()) >= 2, 240, log)
    for name, reason in strangers.items():
        until(partial(world.says, name, f"not connected: {reason}"), 120, world.log(name).read_text)
        assert not world.says(name, "Traceback")
        world.kill(name)
    world.kill("north")
    gone = until(lambda: next((line["round"] for line in lines() if _lost("north", line)), 0), 120, log)
    state = world.folder / "hospitals" / "north" / "state" / read_json(out / "federation.json")["run"]
    assert read_json(state / "committed.json")["round"] < gone
    world.start("north", *shlex.split(COMMANDS[4]))
    back = until(
        lambda: next((x["round"] for x in lines() if x["round"] > max(gone, 7) and not x["lost"]), 0), 400, log
    )
    until(lambda: read_json(state / "committed.json")["round"] >= back, 30, log)
    world.running["run"].signal(signal.SIGINT)
    assert world.running.pop("run").wait(60) == 130, log()
    (world.folder / "orders.json").unlink()
    reasons = lost(lines())
    for round, part in {
        2: "NaN",
        3: "shape",
        4: "float64",
        5: "infinities",
        6: "round 5, 6",
        7: "expected shape",
    }.items():
        mine = [reason for reason in reasons[round] if "site south" in reason]
        assert len(mine) == 1, reasons
        assert part in mine[0]


def _lost(site: str, line: dict[str, Any]) -> bool:
    return any(f"site {site}" in item["reason"] for item in line["lost"])


def _strangers(world: World) -> dict[str, str]:
    """A site with a key that the server does not know, and one that trusts another authority."""
    port = re.search(r"port = (\d+)", (world.folder / "hospitals" / "server" / "federation.toml").read_text())
    assert port is not None
    init(world.folder / "other", ["unknown", "foreign"], port=int(port[1]))
    trusted = world.folder / "hospitals" / "server" / "ca.pem"
    (world.folder / "other" / "unknown" / "ca.pem").write_bytes(trusted.read_bytes())
    for name in ("unknown", "foreign"):
        world.start(name, "undrift", "federation", "join", f"other/{name}", "--data", "east.npz")
    return {
        "unknown": "the server does not know this site's key",
        "foreign": "the server's certificate is not from the authority",
    }


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[None]:
    """Two processors of a Ray cluster on this machine, for all algorithms."""
    ray = pytest.importorskip("ray")
    own = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 10**8}
    ray.init(address="local", log_to_driver=False, logging_level="error", **own)
    try:
        yield
    finally:
        ray.shutdown()


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "fedpvr+fsl", "fedadc", "scaffold+topk+quantise"])
def test_every_engine_ends_in_the_same_bits(
    world: World, ray_cluster: None, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The conformance over engines: local with 0, 1 and 2 workers, Ray, and the sites behind Flower.

    The bytes up are those that were counted in the messages that arrived from Flower.
    """
    arrived: list[int] = []

    def measured(content: RecordDict, size: int, dtype: torch.dtype) -> torch.Tensor:
        arrived.append(len(parts(content)[1].data))
        return vector_of(content, size, dtype)

    monkeypatch.setattr("undrift.federation.engine.vector_of", measured)
    overrides = [f'algorithm.name="{algorithm}"', "train.rounds=2"]
    if "fsl" in algorithm:
        data = data_of(read(world.folder / "study.toml"))
        np.savez(world.folder / "own.npz", x=data.x_test[:30].numpy(), y=data.y_test[:30].numpy())
        overrides += ["algorithm.fedpvr.layers=1", 'server_data.source="file"']
        overrides += [f'server_data.path="{world.folder}/own.npz"']
    engines = {
        **{f"local, {workers} workers": [f"engine.workers={workers}"] for workers in (0, 1, 2)},
        "ray": ['engine.name="ray"', "engine.workers=2"],
        "flower": ['engine.name="flower"', f'engine.federation="{world.folder}/hospitals/server"'],
    }
    ends, sent = {}, set()
    for engine, settings in engines.items():
        result = run_config(read(world.folder / "study.toml", [*overrides, *settings]), None)
        assert result.server is not None
        ends[engine] = result.server.x
        sent.add(result.summary["bytes_up"])
    assert sent == {sum(arrived)}
    start = run_config(read(world.folder / "study.toml", [*overrides, "train.rounds=1"]), None).server
    assert start is not None
    assert not torch.equal(start.x, ends["ray"])
    differing = [engine for engine, x in ends.items() if not torch.equal(x, ends["local, 0 workers"])]
    assert not differing
