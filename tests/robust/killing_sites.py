"""Kills of the parties of a real federation: the run, the server, its SuperLink, a site, its SuperNode.

All sites must take part in every round (``engine.min_sites``), so a run that loses one ends, is resumed when it is
back, and must end in the bits of the simulation.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "flower"))

import tomli_w
from soaking import ALGORITHMS, killed, left_behind, tell
from worlds import SITES, server_port, settings, write_data

from forked import Command, children, family, until
from shell import same_run
from undrift.federation import link
from undrift.federation.setup import init

VICTIMS = ("run", "server", "link", "site", "node")
ROUNDS, MOST = 8, 8
"""Rounds of a run, and kills in one."""


class Parties:
    """The server and the sites, each a process with one of Flower's as its child."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_data(folder)
        init(folder / "fed", list(SITES), port=server_port())
        self.running: dict[str, Command] = {}
        for name in ("server", *SITES):
            self.start(name)

    def start(self, name: str) -> None:
        """Start the server or a site, again if need be; a server is waited for."""
        said = self.folder / f"{name}.log"
        said.unlink(missing_ok=True)
        if name == "server":
            words = ("federation", "serve", "fed/server", "--host", "127.0.0.1")
        else:
            words = ("federation", "join", f"fed/{name}", "--data", f"{name}.npz")
        self.running[name] = Command(*words, said=said, cwd=self.folder)
        if name == "server":
            until(lambda: said.exists() and "serving" in said.read_text(), 240, said.read_text)

    def kill(self, draw: random.Random, victim: str) -> tuple[int, int]:
        """Kill a party or its child and bring it back: kills, and processes left behind."""
        name = draw.choice(SITES) if victim in ("site", "node") else "server"
        party = self.running[name]
        whole = family(party.pid)
        if victim in ("server", "site"):
            party.kill()
            left = left_behind(whole)
            self.start(name)
            return 1, left
        below = children(party.pid)
        done, left = sum(map(killed, below)), left_behind(below)
        if victim == "link":  # without it the server ends, and says why
            party.wait(60)
            self.start(name)
        return done, left

    def stop(self) -> int:
        """End everybody outright; returns how many processes are left."""
        whole = [pid for party in self.running.values() for pid in family(party.pid)]
        for party in self.running.values():
            party.kill()
        return left_behind(whole)


def killed_run(draw: random.Random, parties: Parties, algorithm: str) -> tuple[int, int, bool]:
    """A run whose parties are killed: kills, processes left behind, whether the bits are those of the simulation."""
    simulated = settings(parties.folder, algorithm, ROUNDS)
    simulated |= {"data": {"name": "npz", "path": str(parties.folder / "all.npz")}, "partition": {"scheme": "given"}}
    engine = {"name": "flower", "federation": str(parties.folder / "fed" / "server"), "checkpoint_seconds": 0.0}
    real = settings(parties.folder, algorithm, ROUNDS) | {"engine": engine | {"min_sites": 3, "round_timeout": 20.0}}
    real["data"] = {"name": "npz", "path": str(parties.folder / "server.npz")}
    for name, config in (("simulated.toml", simulated), ("real.toml", real)):
        Path(name).write_text(tomli_w.dumps(config))
    for name in ("whole", "cut"):
        shutil.rmtree(name, ignore_errors=True)
    assert Command("run", "simulated.toml", "--quiet", "--out", "whole", "--workers", "0").wait(600) == 0
    return _until_done(draw, parties)


def _until_done(draw: random.Random, parties: Parties) -> tuple[int, int, bool]:
    words, kills, left = ("run", "real.toml", "--quiet", "--out", "cut"), 0, 0
    end = time.monotonic() + 1800
    while time.monotonic() < end:
        run = Command(*words, *(["--resume"] if Path("cut/config.toml").exists() else []))
        while run.poll() is None and kills < MOST:
            time.sleep(0.5 + 6 * draw.random())
            if run.poll() is not None:
                break
            victim = draw.choice(VICTIMS)
            if victim == "run":
                whole = family(run.pid)
                run.kill()
                some, behind = 1, left_behind(whole)
            else:
                some, behind = parties.kill(draw, victim)
            kills, left = kills + some, left + behind
        code, said = run.end(900)
        if "Traceback" in said:
            print(said, flush=True)
            return kills, left, False
        if code == 0:
            return kills, left, same_run(Path("cut"), Path("whole"))
    return kills, left, False


def kill(count: int, seed: int) -> bool:
    """So many kills over all algorithms that run on Flower; those that do not are refused, and leave nothing."""
    link._PATIENCE = 5.0  # a server that is gone is not waited for as long as people would
    draw, kills, wrong = random.Random(seed), 0, 0
    folder = Path("federation").absolute()
    folder.mkdir()
    parties, left, runs = Parties(folder), 0, 0
    try:
        while kills < count:
            algorithm = ALGORITHMS[runs % 4]
            some, behind, right = killed_run(draw, parties, algorithm)
            tell(algorithm, "flower", some, behind, right)
            kills, left, wrong, runs = kills + some, left + behind, wrong + (not right), runs + 1
        refused = Command("run", "real.toml", "--out", "other", "--set", "algorithm.name=minibatch-sfl").end(60)
        wrong += refused[0] != 2 or Path("other").exists()
    finally:
        left += parties.stop()
    print(f"flower: {kills} kills in {runs} runs: {wrong} with other bits, {left} processes left behind", flush=True)
    return not wrong and not left
