"""The long part of the campaign (``make soak``): thousands of rounds, hundreds of kills.

``python tests/robust/soaking.py --rounds 10000 --kills 200``: memory and open files must stay as they are; a run that
is killed (its parent, or one of its workers, at random moments) and resumed must end in the same bits, with no process
left behind.
"""

# ruff: noqa: E402 - imports that need a path

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

import numpy as np
import torch

from shell import CONFIG, arrays, same_run
from undrift.cli import main
from undrift.experiment.config import parse, read
from undrift.experiment.from_config import run_config

ALGORITHMS = ("scaffold", "feddyn", "fsl", "fedadc+fsl", "minibatch-sfl")
ENGINES = {
    "one process": ["--workers", "0"],
    "two workers": ["--workers", "2"],
    "ray": ["--set", "engine.name=ray", "--workers", "1"],
}
LEAST = 0.05
"""Seconds after which a process may be killed."""


def resident() -> int:
    """Memory of this process, in kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS")))


def soak(rounds: int, workers: int) -> bool:
    """Many quick rounds; whether memory and open files at the end are those after a tenth."""
    marks: dict[int, tuple[int, int]] = {}

    def look(round: int, of: int, record: Any) -> None:
        if round in (rounds // 10, rounds) and round not in marks:
            marks[round] = resident(), len(os.listdir("/proc/self/fd"))

    settings = {"train": {"rounds": rounds, "eval_every": 10}, "engine": {"workers": workers}}
    given = read(Path("c.toml")).model_dump(exclude_none=True, exclude_unset=True)
    merged = {**given, "algorithm": {"name": "scaffold"}, **settings, "train": given["train"] | settings["train"]}
    run_config(parse(merged), Path("soak"), progress=look)
    (early, files), (late, files_late) = marks[rounds // 10], marks[rounds]
    print(f"{rounds} rounds, {workers} workers: {early} -> {late} kB ({late / early - 1:+.2%}), "
          f"open files {files} -> {files_late}", flush=True)  # fmt: skip
    shutil.rmtree("soak")
    return late <= 1.02 * early and files == files_late


def start(words: list[str]) -> int:
    """The command in a process of its own, without a new Python."""
    pid = os.fork()
    if pid:
        return pid
    os.setpgid(0, 0)
    sys.argv = ["undrift", *words]
    code: Any = 1
    with open("said", "a") as said, contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as end:
            code = end.code
    os._exit(code)


def children(pid: int) -> list[int]:
    """Processes that a process started."""
    with contextlib.suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    return [pid, *(one for child in children(pid) for one in family(child))]


def alive(pid: int) -> bool:
    """Whether a process still runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def killed_run(draw: random.Random, algorithm: str, engine: str, seconds: float) -> tuple[int, int, bool]:
    """A run that is killed again and again until it ends: kills, processes left behind, whether the bits are right."""
    words = ["run", "c.toml", "--quiet", "--out", "cut", "--set", f"algorithm.name={algorithm}", *ENGINES[engine]]
    words += ["--set", "engine.checkpoint_seconds=0.0"]
    kills = left = 0
    shutil.rmtree("cut", ignore_errors=True)
    while True:
        held = Path("cut/config.toml").exists()
        pid = start([*words, *(["--resume"] if held else [])])
        wait = LEAST + draw.random() * seconds
        end, code = time.monotonic() + wait, None
        while time.monotonic() < end and code is None:
            done, status = os.waitpid(pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if done else None
            time.sleep(0.005)
        if code is not None:
            return kills, left, code == 0 and same_run(Path("cut"), Path("whole"))
        everybody = family(pid)
        workers = everybody[1:] if engine == "two workers" else []
        victim = draw.choice([pid, *workers])
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            kills += 1
        if victim != pid:  # the run goes on with another worker; then it is killed itself
            time.sleep(draw.random() * 0.2)
            os.kill(pid, signal.SIGKILL)
            kills += 1
        os.waitpid(pid, 0)
        seconds *= 1.2  # so that every run comes to its end, however slow the machine is
        time.sleep(0.1)
        if engine != "ray" or any(map(alive, everybody)):
            patience = time.monotonic() + 5
            while any(map(alive, everybody)) and time.monotonic() < patience:
                time.sleep(0.05)
            left += sum(map(alive, everybody))


def kill(count: int, engines: list[str], seed: int) -> bool:
    """So many kills over all algorithms and these engines."""
    draw, kills, left, wrong, runs = random.Random(seed), 0, 0, 0, 0
    while kills < count:
        algorithm, engine = ALGORITHMS[runs % len(ALGORITHMS)], engines[runs // len(ALGORITHMS) % len(engines)]
        shutil.rmtree("whole", ignore_errors=True)
        begun = time.monotonic()
        whole = ["run", "c.toml", "--quiet", "--out", "whole", "--workers", "0", "--set", f"algorithm.name={algorithm}"]
        os.waitpid(start(whole), 0)
        lasts = max(0.3, time.monotonic() - begun) * (1.0 if engine != "ray" else 20.0)
        some, behind, right = killed_run(draw, algorithm, engine, lasts)
        kills, left, wrong, runs = kills + some, left + behind, wrong + (not right), runs + 1
        print(
            f"{algorithm} on {engine}: {some} kills, {behind} left, {'same bits' if right else 'OTHER BITS'}",
            flush=True,
        )
    print(f"{kills} kills in {runs} runs: {wrong} with other bits, {left} processes left behind", flush=True)
    return not wrong and not left


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--engine", action="append", choices=list(ENGINES))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    here = Path(tempfile.mkdtemp(prefix="undrift-soak-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    os.chdir(here)
    try:
        np.savez("data.npz", **arrays())
        Path("c.toml").write_text(CONFIG.replace("rounds = 4", "rounds = 30"))
        fine = [soak(options.rounds, workers) for workers in (0, 2) if options.rounds]
        fine.append(not options.kills or kill(options.kills, options.engine or list(ENGINES), options.seed))
    finally:
        os.chdir("/")
        shutil.rmtree(here)
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(_main())
