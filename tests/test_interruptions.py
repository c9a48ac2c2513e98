"""Whatever is cut off, killed or replaced: what comes of a run in the end is the same to the bit."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import undrift as ud
from test_conformance import COHORT, CONFIG, ROUNDS, combined, data, facts, label, model, simulated
from undrift.cli import main
from undrift.core.files import read_lines
from undrift.core.tree import Tree, copy_into, flatten
from undrift.data.federation import from_clients
from undrift.engines import local_worker
from undrift.engines.auto import engine_for
from undrift.experiment.config import read
from undrift.experiment.from_config import run_config
from undrift.experiment.run_folder import RunFolder
from undrift.rounds.loop import Run
from undrift.rounds.plan import Plan
from undrift.rounds.prepare import prepare
from undrift.rules.rule import Rule

# Resuming.


@dataclass
class PowerCutError(Exception):
    """Stands for a power cut after a round."""

    round: int


STATEFUL = [
    ("scaffold",),
    ("fedpvr",),
    ("feddyn",),
    ("slowmo",),
    ("fedadc",),
    ("ds",),
    ("fsl",),
    ("fedavg",),
    ("centralised",),
    ("scaffold", "slowmo"),
    ("fedadc", "ds", "fsl"),
    ("fedpvr", "fsl"),
    ("scaffold", "fedadc", "ds"),
]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("names", STATEFUL, ids=label)
def test_a_resumed_run_ends_in_the_same_bits(names: tuple[str, ...], workers: int, tmp_path: Path) -> None:
    """Stopped after round 5 of 7 with checkpoints after every round but the last ones: rounds are done again."""
    clients, server, test = data()
    plan = Plan(rounds=7, lr=0.1, schedule="cosine", cohort=COHORT, batch_size=4, seed=3, weight_decay=0.01)
    federation = from_clients(clients, server=server, test=test)
    work = prepare(model(), combined(names), federation, plan, nn.functional.cross_entropy, "cpu")
    whole = Run(work, engine_for, 0, folder=RunFolder(tmp_path / "whole", {}, resume=False), state_budget=400).go()

    def cut(round: int, rounds: int, record: Any) -> None:
        if round == 5:
            raise PowerCutError(round)
        run.checkpoint_seconds = -1.0 if round < 2 else 1e9

    run = Run(
        work, engine_for, workers, folder=RunFolder(tmp_path / "cut", {}, resume=False), progress=cut, state_budget=400
    )
    run.checkpoint_seconds = -1.0
    with pytest.raises(PowerCutError):
        run.go()
    state = json.loads((tmp_path / "cut" / "checkpoint" / "state.json").read_text())
    assert 1 <= state["round"] < 5
    with open(tmp_path / "cut" / "metrics.jsonl", "a") as file:
        file.write('{"round": 6, "test_acc')
    resumed = Run(work, engine_for, 0, folder=RunFolder(tmp_path / "cut", {}, resume=True), state_budget=400).go()
    assert facts(resumed) == facts(whole)
    assert_same_folders(tmp_path / "cut", tmp_path / "whole")
    again = Run(work, engine_for, 0, folder=RunFolder(tmp_path / "cut", {}, resume=True)).go()
    assert facts(again) == facts(whole)


def without_clock(folder: Path, name: str) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in read_lines(folder / name)]


def assert_same_folders(one: Path, other: Path) -> None:
    for name in ("metrics.jsonl", "rounds.jsonl"):
        assert without_clock(one, name) == without_clock(other, name)
        assert without_clock(one, name)
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, other)]
    for summary in summaries:
        summary.pop("seconds")
        assert summary.pop("checksums")  # of files that hold seconds
    assert summaries[0] == summaries[1]
    states = [json.loads((folder / "checkpoint" / "state.json").read_text()) for folder in (one, other)]
    assert states[0]["clients"].keys() == states[1]["clients"].keys()
    for client in states[0]["clients"]:
        pairs = zip((one, other), states, strict=True)
        memories = [load_file(f / "checkpoint" / "clients" / s["clients"][client]) for f, s in pairs]
        assert all(torch.equal(memories[0][path], memories[1][path]) for path in memories[0])
    leftovers = [p for p in one.rglob("*") if p.name.endswith(".part")]
    assert not leftovers


class Killer(ud.Rule):
    """Kills the worker of each round's first client: in its steps, or in every other round while it answers."""

    def __init__(self, flag: Path, driver: int) -> None:
        self.flag, self.driver = flag, driver
        self.round = 0

    def shift(self, y: Tensor, at: ud.ClientAt) -> None:
        self.round = at.round
        if at.round % 2:
            self.strike()

    def answer(self, source: Tree, target: Tree) -> None:
        """In place of the engine's own function that puts an answer into shared memory."""
        if self.round % 2 == 0:
            self.strike(target)
        copy_into(source, target)

    def strike(self, target: Tree | None = None) -> None:
        if self.round > 1 and os.getpid() != self.driver and not (mark := self.flag / str(self.round)).exists():
            mark.touch()
            for value in flatten(target or {}).values():
                value.fill_(7.0)
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("rule", [ud.fedavg(), ud.scaffold(), ud.feddyn(0.2) + ud.fsl()])
def test_a_killed_worker_is_replaced_and_the_bits_stay(
    rule: Rule, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = facts(simulated(rule))
    killer = Killer(tmp_path, os.getpid())
    monkeypatch.setattr(local_worker, "copy_into", killer.answer)
    shaken = simulated(rule + killer, workers=workers)
    assert len(list(tmp_path.iterdir())) == ROUNDS - 1
    assert {**facts(shaken), "summary": 0} == {**quiet, "summary": 0}


# Real processes.


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "undrift", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def forked(*arguments: str | Path) -> ForkProcess:
    """The command in a process of its own, without the seconds that importing takes."""

    def child() -> None:
        os.setsid()
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        sys.argv = ["undrift", *map(str, arguments)]
        main()

    process = get_context("fork").Process(target=child)
    process.start()
    return process


@pytest.mark.parametrize(
    ("algorithm", "workers", "checkpoint", "kills"),
    [
        ("scaffold", 0, 0, 3),
        ("scaffold", 2, 0.02, 3),
        ("fedadc+ds+fsl", 2, 0.02, 2),
        ("feddyn", 0, 0, 2),
        ("fedpvr+slowmo", 0, 0.02, 2),
    ],
)
def test_kill_minus_nine_at_random_moments(
    algorithm: str, workers: int, checkpoint: float, kills: int, tmp_path: Path
) -> None:
    """Processes killed at moments drawn from a seed and resumed, against an uninterrupted run."""
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(algorithm=algorithm, workers=workers, checkpoint=checkpoint, rounds=40))
    run_config(read(path, ["engine.workers=0", "engine.checkpoint_seconds=10"]), tmp_path / "whole")
    draw = random.Random(f"{algorithm} {workers}")
    out, killed = tmp_path / "killed", 0
    for _ in range(kills):
        if rounds_in(out) > 30:
            break
        resume = ["--resume"] if (out / "config.toml").exists() else []
        process = forked("run", path, "--out", out, "--quiet", *resume)
        kill_after(process.pid, rounds_in(out) + draw.randrange(2, 9), draw.random() * 0.02, out, process.is_alive)
        process.join()
        killed += process.exitcode == -signal.SIGKILL
    assert killed
    last = forked("run", path, "--out", out, "--quiet", "--resume")
    last.join()
    assert last.exitcode == 0
    assert_same_folders(out, tmp_path / "whole")


def kill_after(pid: int | None, target: int, pause: float, out: Path, alive: Callable[[], bool]) -> None:
    """Kill a process and its workers a moment after it has made so many rounds (or none, if it never gets there)."""
    for _ in patience(300):
        if rounds_in(out) >= target or not alive():
            break
    time.sleep(pause)
    if alive() and pid is not None:
        os.killpg(pid, signal.SIGKILL)


def test_kill_minus_nine_of_the_command_itself(tmp_path: Path) -> None:
    """The installed program, killed once, against a run in this process: two programs, the same bits."""
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(algorithm="scaffold+fsl", workers=2, checkpoint=0.05, rounds=50))
    run_config(read(path, ["engine.workers=0"]), tmp_path / "whole")
    start = command("run", path, "--out", tmp_path / "killed", "--quiet")
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment()}
    process = subprocess.Popen(start, start_new_session=True, **quiet)
    kill_after(process.pid, 10, 0.005, tmp_path / "killed", lambda: process.poll() is None)
    assert process.wait() == -signal.SIGKILL
    assert rounds_in(tmp_path / "killed") < 50
    assert subprocess.run([*start, "--resume"], **quiet).returncode == 0
    assert_same_folders(tmp_path / "killed", tmp_path / "whole")


def rounds_in(folder: Path) -> int:
    path = folder / "rounds.jsonl"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def patience(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.005)
    raise AssertionError("it took too long")
