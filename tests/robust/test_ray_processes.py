"""A Ray cluster of our own ends with its driver, however that ends; nobody else's files or processes are touched."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from forked import alive, family, until
from undrift.core.files import read_lines
from undrift.engines import ray_guard

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
RUN = ("run", "c.toml", "--out", "out", "--quiet", "--workers", "1")
WITH = ("--set", "engine.name=ray", "--set", "train.rounds=100000")


@pytest.mark.parametrize("moment", ["in a round", "while the cluster starts"])
def test_a_cluster_ends_with_its_driver(here: Path, moment: str) -> None:
    pytest.importorskip("ray")
    driver = subprocess.Popen([sys.executable, "-c", "from undrift.cli import main; main()", *RUN, *WITH])
    everybody = [driver.pid]
    try:
        if moment == "in a round":
            until(lambda: driver.poll() is not None or len(read_lines(here / "out" / "rounds.jsonl")) > 1, 240)
        else:
            until(lambda: driver.poll() is not None or len(family(driver.pid)) > 3, 240)
        assert driver.poll() is None
        everybody = family(driver.pid)
    finally:
        driver.kill()
        driver.wait()
        try:
            until(lambda: not any(map(alive, everybody)), 5, lambda: str([pid for pid in everybody if alive(pid)]))
        finally:
            for pid in filter(alive, everybody):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    assert len(everybody) > 3


@pytest.mark.parametrize(
    ("name", "mode", "ends"),
    [
        ("session_{now}_{pid}", "a", True),
        ("session_{now}_{pid}", "r", False),  # somebody reads the logs
        ("session_{now}_{pid}0", "a", False),  # another process's cluster
        ("session_2020-01-01_00-00-00_000000_{pid}", "a", False),  # of an earlier process with this number
    ],
)
def test_whom_the_guard_ends(tmp_path: Path, name: str, mode: str, ends: bool) -> None:
    script = (
        "import sys, time; from datetime import datetime; from undrift.engines.ray_guard import Guard\n"
        "guard = Guard(); print(flush=True); time.sleep(60)"
    )
    driver = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert driver.stdout is not None
    driver.stdout.readline()
    folder = tmp_path / name.format(now=datetime.now().strftime("%Y-%m-%d_%H-%M-%S_%f"), pid=driver.pid)
    folder.mkdir()
    (folder / "log").touch()
    (guard,) = family(driver.pid)[1:]
    with open(folder / "log", mode) as log:
        other = subprocess.Popen(["sleep", "60"], stdin=log)
    try:
        driver.kill()
        driver.communicate()
        until(lambda: not alive(guard), 20)
        time.sleep(0.1)
        assert (other.poll() == -signal.SIGKILL) is ends
    finally:
        other.kill()
        other.wait()


def test_a_cluster_that_ended_is_guarded_no_longer() -> None:
    guard = ray_guard.Guard()
    (script,) = [pid for pid in family(os.getpid())[1:] if b"ray_guard" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    guard.close()
    assert not alive(script)
