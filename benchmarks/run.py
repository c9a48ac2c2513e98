"""Compare undrift's engine with Flower's simulation, pfl-research and a hand-written loop on the same work.

    python benchmarks/run.py [--quick] [--work a,b,…] [--repeat R] [--rounds K] [--report]

Every system runs in a process (tree) of its own, one after the other, in an order that rotates from repetition
to repetition. All of it takes most of an hour on two quiet cores, ``--quick`` about five minutes. Results go to
``benchmarks/results``: one JSON file for each work, and a README with tables.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from environments import ENVS, prepare, python_of  # noqa: E402
from memory import Watch, descendants  # noqa: E402
from peers import common  # noqa: E402
from report import summarise, write_readme  # noqa: E402
from works import WORKS, Spec, System, Work  # noqa: E402

RESULTS = HERE / "results"
LIMIT, QUICK_LIMIT = 1800.0, 240.0
"""Seconds after which a run of a system is given up."""


def machine() -> dict[str, Any]:
    """The hardware, without anything that names the machine."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "memory_gb": round(memory, 1)}


def data_for(spec: Spec) -> Path:
    """The data that all systems read, made once."""
    folder = ENVS / "data" / f"{spec['set']}-{spec['samples']}-{spec['test']}"
    common.generate(folder, tuple(spec["shape"]), spec["classes"], spec["samples"], spec["test"])
    return folder


def measure(work: Work, system: System, rounds: int, limit: float = LIMIT) -> dict[str, Any]:
    """One run of one system."""
    spec = work.of(system, rounds)
    spec["data"] = str(data_for(spec))
    threads = {name: str(spec["threads"]) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as ray_folder:
        started = time.time()
        environment = {
            **os.environ,
            **threads,
            "PYTHONPATH": str(HERE),
            "BENCH_SPEC": json.dumps(spec),
            "BENCH_STARTED": str(started),
            "FLWR_TELEMETRY_ENABLED": "0",
            "RAY_DEDUP_LOGS": "0",
            "RAY_TMPDIR": ray_folder,  # what a killed cluster flatten in the usual place keeps a new one waiting
        }
        process = subprocess.Popen(
            [str(python_of(system.environment)), "-m", f"peers.{system.module}"],
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        watch = Watch(process.pid)
        try:
            out, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            for pid in descendants(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.communicate()
            out, errors = "", f"not finished within {limit:.0f} s"
        memory = watch.stop()
    line = next((line for line in reversed(out.splitlines()) if line.startswith("{")), None)
    if line is None:
        print(errors[-3000:], file=sys.stderr)
        last = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
        return {"failed": last.replace(f"{HERE.parent}/", "")[:200]}
    return {**json.loads(line), **memory}


def others(seconds: float = 3.0) -> float:
    """How many cores somebody else keeps busy (the average load would count our own last run, too)."""

    def read() -> tuple[int, int]:
        fields = [int(value) for value in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]

    if not Path("/proc/stat").exists():
        return os.getloadavg()[0]
    total, idle = read()
    time.sleep(seconds)
    total_after, idle_after = read()
    busy = 1 - (idle_after - idle) / max(total_after - total, 1)
    return busy * (os.cpu_count() or 1)


def run(work: Work, *, quick: bool, repeat: int, rounds: int | None) -> dict[str, Any]:
    """All systems on one work, interleaved and repeated."""
    count = rounds or (work.quick_rounds if quick else work.rounds)
    systems = [system for system in work.systems if system.quick or not quick]
    load = others()
    found: dict[str, dict[str, Any]] = {
        system.name: {"label": system.label, "settings": dict(system.settings), "runs": []} for system in systems
    }
    for repetition in range(repeat):
        turn = repetition * 3 % len(systems)
        for system in systems[turn:] + systems[:turn]:
            if quick and load > 0.5 and system.module == "pfl_sim" and dict(system.settings).get("threads", 1) > 1:
                continue  # threads of one process wait for each other in spin loops: minutes a round on a busy machine
            result = measure(work, system, count, QUICK_LIMIT if quick else LIMIT)
            found[system.name]["runs"].append(result)
            shown = result.get("failed") or f"{sorted(result['seconds'])[len(result['seconds']) // 2]:.3f} s a round"
            print(f"({work.key}) {repetition + 1}/{repeat} {system.label}: {shown}", flush=True)
    spec = {key: value for key, value in work.of(systems[0], count).items() if key not in dict(systems[0].settings)}
    return {
        "work": work.key,
        "title": work.title,
        "spec": spec,
        "quick": quick,
        "repeat": repeat,
        "rounds": count,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "load_before": round(load, 2),
        "systems": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, one repetition, fewer settings")
    parser.add_argument("--work", default=",".join(WORKS), help=f"which of {','.join(WORKS)} (default: all)")
    parser.add_argument("--repeat", type=int, help="repetitions (default: 3, quick 1)")
    parser.add_argument("--rounds", type=int, help="rounds a run")
    parser.add_argument("--report", action="store_true", help="only write the tables again from the stored results")
    options = parser.parse_args()
    keys = options.work.split(",")
    if unknown := [key for key in keys if key not in WORKS]:
        parser.error(f"--work: {unknown[0]!r} is not one of {', '.join(WORKS)}")
    RESULTS.mkdir(exist_ok=True)
    for key in [] if options.report else keys:
        for name in sorted({system.environment for system in WORKS[key].systems} - {None}, key=str):
            prepare(str(name))
        repeat = options.repeat or (1 if options.quick else 3)
        result = run(WORKS[key], quick=options.quick, repeat=repeat, rounds=options.rounds)
        summarise(result)
        (RESULTS / f"{key}.json").write_text(json.dumps(result, indent=1) + "\n")
        write_readme(RESULTS)
    write_readme(RESULTS)
    print(f"wrote {RESULTS.relative_to(HERE.parent)}/README.md")


if __name__ == "__main__":
    main()
