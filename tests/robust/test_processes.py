"""No process is lost: workers end with their parent, stops are saved, a stopped worker is replaced."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shell import Undrift, same_run
from undrift.core.files import read_lines

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
RUN = [sys.executable, "-m", "undrift.cli", "run", "c.toml", "--out", "out", "--quiet", "--workers", "2"]
LONG = ["--set", "train.local_steps=2000000"]
"""A round that takes minutes."""


def start(*more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*RUN, "--set", "algorithm.name=scaffold", *more], stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip


def until(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def working(pid: int) -> list[int]:
    """The two workers, once both compute."""
    found = children(pid)
    return found if len(found) == 2 and all(ticks(child) > 10 for child in found) else []


def ticks(pid: int) -> int:
    with contextlib.suppress(OSError):
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return 0


def gone(pids: list[int]) -> bool:
    return not any(alive(pid) for pid in pids)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_workers_end_with_their_parent(here: Path, sign: signal.Signals) -> None:
    run = start(*LONG)
    workers = until(lambda: working(run.pid))
    run.send_signal(sign)
    try:
        run.wait(30)
        until(lambda: gone(workers), 5)
    finally:
        run.kill()
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
    _, said = run.communicate()
    assert (run.returncode, "interrupted" in said) == ((-9, False) if sign == signal.SIGKILL else (130, True))
    assert "Traceback" not in said


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGHUP])
def test_a_stop_is_saved(here: Path, undrift: Undrift, sign: signal.Signals) -> None:
    rounds = ("--set", "train.rounds=150", "--set", "engine.checkpoint_seconds=1000")
    whole = undrift("run", "c.toml", "--out", "whole", "--quiet", "--set", "algorithm.name=scaffold", *rounds)
    assert whole.code == 0
    run = start(*rounds)
    until(lambda: len(read_lines(here / "out" / "rounds.jsonl")) > 2)
    run.send_signal(sign)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert said.strip().splitlines()[-1].startswith("undrift: interrupted; what was done is saved")
    state = json.loads((here / "out" / "checkpoint" / "state.json").read_text())
    assert state["round"] == len(read_lines(here / "out" / "rounds.jsonl")) > 2
    assert undrift("run", "out/config.toml", "--out", "out", "--resume", "--quiet").code == 0
    assert same_run(here / "out", here / "whole")


def test_a_stopped_worker_is_replaced(here: Path, undrift: Undrift) -> None:
    rounds = ("--set", "train.rounds=30", "--set", "train.local_steps=200")
    whole = undrift("run", "c.toml", "--out", "whole", "--quiet", "--set", "algorithm.name=scaffold", *rounds)
    assert whole.code == 0
    run = start(*rounds, "--set", "engine.timeout=1")
    try:
        worker = until(lambda: working(run.pid))[0]
        os.kill(worker, signal.SIGSTOP)
        _, said = run.communicate(timeout=60)
    finally:
        run.kill()
    assert (run.returncode, said) == (0, "")
    assert gone([worker])
    assert same_run(here / "out", here / "whole")


def test_control_c_beside_a_stopped_worker(here: Path) -> None:
    run = start("--set", "train.rounds=100000")
    try:
        worker = until(lambda: working(run.pid))[0]
        os.kill(worker, signal.SIGSTOP)
        time.sleep(0.5)
        run.send_signal(signal.SIGINT)
        assert run.wait(30) == 130
        until(lambda: gone([worker]), 5)
    finally:
        run.kill()
        run.communicate()


def test_a_comparison_that_is_stopped_saves_its_runs(here: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "undrift.cli", "compare", "c.toml", "--algorithms", "fedavg,scaffold", "--out", "out",
         "--quiet", "--set", "train.rounds=100000", "--set", "engine.checkpoint_seconds=1000"],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    folders = [here / "out" / name / "seed1" for name in ("fedavg", "scaffold")]
    runs: list[int] = []
    try:
        until(lambda: all(len(read_lines(folder / "rounds.jsonl")) > 2 for folder in folders))
        runs = children(run.pid)
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=30)
    finally:
        run.kill()
    assert run.returncode == 130
    assert "finished runs are kept" in said
    assert gone(runs)
    for folder in folders:
        saved = json.loads((folder / "checkpoint" / "state.json").read_text())["round"]
        assert saved == len(read_lines(folder / "rounds.jsonl")) > 2
