"""No process is lost: workers end with their parent, stops are saved, a stopped worker is replaced."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from forked import Command, alive, children, until
from shell import Undrift, same_run
from undrift.core.files import read_lines

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
RUN = ("run", "c.toml", "--out", "out", "--quiet", "--workers", "2", "--set", "algorithm.name=scaffold")
LONG = ("--set", "train.local_steps=2000000")
"""A round that takes minutes."""


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that is stopped is given up after a second."""
    monkeypatch.setattr("undrift.core.signals.GRACE", 1.0)


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


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_workers_end_with_their_parent(here: Path, sign: signal.Signals) -> None:
    run = Command(*RUN, *LONG)
    workers = until(lambda: working(run.pid))
    try:
        run.signal(sign)
        code, said = run.end(30)
        until(lambda: gone(workers), 5)
    finally:
        run.kill()
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
    assert (code, "interrupted" in said) == ((-9, False) if sign == signal.SIGKILL else (130, True))
    assert "Traceback" not in said


def test_a_stop_is_saved(here: Path, undrift: Undrift) -> None:
    """Stopped by one signal, resumed, stopped by another, resumed: the bits of a run that nobody stopped."""
    rounds = ("--set", "train.rounds=80", "--set", "engine.checkpoint_seconds=1000")
    whole = undrift("run", "c.toml", "--out", "whole", "--quiet", "--set", "algorithm.name=scaffold", *rounds)
    assert whole.code == 0
    done = 0
    for sign, more in ((signal.SIGTERM, ()), (signal.SIGHUP, ("--resume",))):
        run = Command(*RUN, *rounds, *more)
        until(partial(_beyond, here, done + 2))
        run.signal(sign)
        code, said = run.end()
        assert code == 130
        assert said.strip().splitlines()[-1].startswith("undrift: interrupted; what was done is saved")
        state = json.loads((here / "out" / "checkpoint" / "state.json").read_text())
        assert state["round"] == len(_rounds(here)) > done + 2
        done = state["round"]
    assert undrift("run", "out/config.toml", "--out", "out", "--resume", "--quiet").code == 0
    assert same_run(here / "out", here / "whole")


def _rounds(here: Path) -> list[dict[str, object]]:
    return read_lines(here / "out" / "rounds.jsonl")


def _beyond(here: Path, rounds: int) -> bool:
    return len(_rounds(here)) > rounds


def test_a_stopped_worker_is_replaced(here: Path, undrift: Undrift, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("undrift.engines.local._LOOK", 0.2)
    rounds = ("--set", "train.rounds=8", "--set", "train.local_steps=200")
    whole = undrift("run", "c.toml", "--out", "whole", "--quiet", "--set", "algorithm.name=scaffold", *rounds)
    assert whole.code == 0
    run = Command(*RUN, *rounds, "--set", "engine.timeout=1")
    try:
        worker = until(lambda: working(run.pid))[0]
        os.kill(worker, signal.SIGSTOP)
        code, said = run.end()
    finally:
        run.kill()
    assert code == 0
    assert "undrift" not in said
    assert gone([worker])
    assert same_run(here / "out", here / "whole")


def test_control_c_beside_a_stopped_worker(here: Path) -> None:
    run = Command(*RUN, "--set", "train.rounds=100000")
    try:
        worker = until(lambda: working(run.pid))[0]
        os.kill(worker, signal.SIGSTOP)
        time.sleep(0.5)
        run.signal(signal.SIGINT)
        assert run.wait(30) == 130
        until(lambda: gone([worker]), 5)
    finally:
        run.kill()


def test_a_comparison_that_is_stopped_saves_its_runs(here: Path) -> None:
    run = Command(
        "compare",
        "c.toml",
        "--algorithms",
        "fedavg,scaffold",
        "--out",
        "out",
        "--quiet",
        "--set",
        "train.rounds=100000",
        "--set",
        "engine.checkpoint_seconds=1000",
    )
    folders = [here / "out" / name / "seed1" for name in ("fedavg", "scaffold")]
    try:
        until(lambda: all(len(read_lines(folder / "rounds.jsonl")) > 2 for folder in folders))
        runs = children(run.pid)
        run.signal(signal.SIGTERM)
        code, said = run.end(30)
    finally:
        run.kill()
    assert code == 130
    assert "finished runs are kept" in said
    assert gone(runs)
    for folder in folders:
        saved = json.loads((folder / "checkpoint" / "state.json").read_text())["round"]
        assert saved == len(read_lines(folder / "rounds.jsonl")) > 2
