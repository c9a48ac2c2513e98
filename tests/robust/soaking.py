"""The long part of the campaign (``make soak``): thousands of rounds, hundreds of kills.

``python tests/robust/soaking.py --rounds 10000 --kills 200``: memory and open files must stay as they are; a run that
is killed (its parent, or one of its workers, at random moments) and resumed must end in the same bits, with no process
left behind. ``--engine flower`` kills the parties of a real federation instead (``killing_sites.py``).
"""

# ruff: noqa: E402 - imports that need a path

from __future__ import annotations

import argparse
import contextlib
import math
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

from forked import Command, alive, family, until
from shell import CONFIG, arrays, same_run
from undrift.experiment.config import parse, read
from undrift.experiment.from_config import run_config

ALGORITHMS = ("scaffold", "feddyn", "fsl", "fedadc+fsl", "minibatch-sfl")
ENGINES = {
    "one process": ["--workers", "0"],
    "two workers": ["--workers", "2"],
    "ray": ["--set", "engine.name=ray", "--workers", "1"],
}
SHARES = {"one process": 20, "two workers": 45, "ray": 20, "flower": 15}
"""Of the kills: a round among real sites takes long."""
RUN = ("run", "c.toml", "--quiet", "--set", "engine.checkpoint_seconds=0.0")
LEAST, MOST = 0.05, 12
"""Seconds after which a process may be killed, and how many times in one run."""


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
    print(
        f"{rounds} rounds, {workers} workers: {early} -> {late} kB ({late / early - 1:+.2%}), "
        f"open files {files} -> {files_late}",
        flush=True,
    )
    shutil.rmtree("soak")
    return late <= 1.02 * early and files == files_late


def whole(algorithm: str, *more: str) -> None:
    """The run that nobody kills."""
    shutil.rmtree("whole", ignore_errors=True)
    assert (
        Command(*RUN, "--out", "whole", "--workers", "0", "--set", f"algorithm.name={algorithm}", *more).wait(600) == 0
    )


def killed_run(draw: random.Random, algorithm: str, engine: str, seconds: float) -> tuple[int, int, bool]:
    """A run that is killed again and again until it ends: kills, processes left behind, whether the bits are right."""
    words = [*RUN, "--out", "cut", "--set", f"algorithm.name={algorithm}", *ENGINES[engine]]
    kills = left = late = 0
    shutil.rmtree("cut", ignore_errors=True)
    while True:
        run = Command(*words, *(["--resume"] if Path("cut/config.toml").exists() else []))
        if kills < MOST:
            _let_work(draw, run, engine, seconds)
            workers = [pid for pid in family(run.pid)[1:] if is_worker(pid, engine)]
            for victim in draw.sample(workers, min(len(workers), draw.choice((0, 1, 1, 2)))):
                kills += killed(victim)  # the run goes on with others
                time.sleep(draw.random() * 0.3)
        else:  # a run must come to its end, however slow the machine is
            run.wait(900)
        if run.poll() == 1 and late < MOST and "no Ray cluster" in run.said.read_text():
            late += 1
            print("Ray did not start within its 30 s: once more", flush=True)
            continue
        if run.poll() is not None:
            return kills, left, run.poll() == 0 and same_run(Path("cut"), Path("whole"))
        everybody = family(run.pid)
        run.kill()
        kills += 1
        left += left_behind(everybody)
        seconds *= 1.2


def _let_work(draw: random.Random, run: Command, engine: str, seconds: float) -> None:
    """Wait for a random while; on Ray, which takes long to begin, mostly for a round that is done, and then some."""
    records = Path("cut/rounds.jsonl")
    if engine == "ray" and draw.random() < 0.8:
        before = records.stat().st_size if records.exists() else 0
        until(lambda: run.poll() is not None or (records.exists() and records.stat().st_size != before), 900)
        seconds = 1.0
    with contextlib.suppress(AssertionError):
        run.wait(LEAST + draw.random() * seconds)


def is_worker(pid: int, engine: str) -> bool:
    """Whether a process is one that carries out clients' work.

    Ray has others of its own, without which the driver ends inside Ray.
    """
    try:
        name = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return engine != "ray" or (name.startswith(b"ray::") and b"Agent" not in name)


def killed(pid: int) -> bool:
    """Kill a process; whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def left_behind(pids: list[int]) -> int:
    """How many processes are there after five seconds; those are ended."""
    with contextlib.suppress(AssertionError):
        until(lambda: not any(map(alive, pids)), 5)
    return sum(killed(pid) for pid in pids if alive(pid))


def kill(count: int, engines: list[str], seed: int) -> bool:
    """So many kills over all algorithms and these engines."""
    draw, kills, left, wrong, runs = random.Random(seed), 0, 0, 0, 0
    while kills < count:
        algorithm, engine = ALGORITHMS[runs % len(ALGORITHMS)], engines[runs // len(ALGORITHMS) % len(engines)]
        begun = time.monotonic()
        whole(algorithm)
        lasts = max(0.3, time.monotonic() - begun) + (20.0 if engine == "ray" else 0.0)
        some, behind, right = killed_run(draw, algorithm, engine, lasts)
        kills, left, wrong, runs = kills + some, left + behind, wrong + (not right), runs + 1
        tell(algorithm, engine, some, behind, right)
    print(f"{kills} kills in {runs} runs: {wrong} with other bits, {left} processes left behind", flush=True)
    return not wrong and not left


def tell(algorithm: str, engine: str, kills: int, left: int, right: bool) -> None:
    """How a killed run ended."""
    bits = "same bits" if right else "OTHER BITS"
    print(f"{algorithm} on {engine}: {kills} kills, {left} left, {bits}", flush=True)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--engine", action="append", choices=list(SHARES))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("RAY_worker_niceness", "0")  # else Ray's workers wait for everybody else
    here = Path(tempfile.mkdtemp(prefix="undrift-soak-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    os.chdir(here)
    try:
        np.savez("data.npz", **arrays())
        Path("c.toml").write_text(CONFIG.replace("rounds = 4", "rounds = 30"))
        fine = [soak(options.rounds, workers) for workers in (0, 2) if options.rounds]
        engines = options.engine or list(SHARES)
        for engine in engines if options.kills else []:
            share = SHARES[engine] / sum(SHARES[name] for name in engines)
            fine.append(_kills(engine, math.ceil(share * options.kills), options.seed))
    finally:
        os.chdir("/")
        shutil.rmtree(here)
    return 0 if all(fine) else 1


def _kills(engine: str, count: int, seed: int) -> bool:
    if engine != "flower":
        return kill(count, [engine], seed)
    import killing_sites

    return killing_sites.kill(count, seed)


if __name__ == "__main__":
    sys.exit(_main())
