"""Compare undrift's engine with Flower's simulation, pfl-research and a hand-written loop on the same work.

    python benchmarks/run.py [--quick] [--work a,b,…] [--repeat R] [--add] [--rounds K] [--only NAME,…] [--touch MB]
        [--against FOLDER] [--report]

All systems of a work are alive together and take turns of a few rounds (``turns``), in an order that rotates from
repetition to repetition; ``--add`` makes more repetitions another time. ``--against`` compares with another checkout
of undrift instead. Results go to a folder of ``benchmarks/results`` for this kind of processor, one JSON file for each
work; a README there has tables of all.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from environments import ENVS, prepare, python_of  # noqa: E402
from machine import machine, others  # noqa: E402
from peers import common  # noqa: E402
from ratios import summarise  # noqa: E402
from report import bar_lines, write_readme  # noqa: E402
from turns import Player, play  # noqa: E402
from works import WORKS, Spec, System, Work, against  # noqa: E402

RESULTS = HERE / "results"
LIMIT, QUICK_LIMIT = 1800.0, 240.0
"""Seconds after which a run of a system is given up."""


def data_for(spec: Spec) -> Path:
    """The data that all systems read, made once."""
    folder = ENVS / "data" / f"{spec['set']}-{spec['samples']}-{spec['test']}"
    common.generate(folder, tuple(spec["shape"]), spec["classes"], spec["samples"], spec["test"])
    return folder


def player(work: Work, system: System, rounds: int, limit: float) -> Player:
    """A system, started."""
    spec = work.of(system, rounds)
    spec["data"] = str(data_for(spec))
    threads = {name: str(spec["threads"]) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    module = ["-m", f"peers.{system.module}"]
    if system.checkout:  # its own way to call itself, but our clock
        module = [str(system.checkout / "benchmarks" / "peers" / f"{system.module}.py")]
    environment = {
        **os.environ,
        **threads,
        "PYTHONPATH": os.pathsep.join([str(HERE), str((system.checkout or HERE.parent) / "src")]),
        "BENCH_SPEC": json.dumps(spec),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_worker_niceness": "0",  # Ray's workers would yield to everybody else on the machine
    }
    return Player([str(python_of(system.environment)), *module], environment, limit)


def result_of(found: Player) -> dict[str, Any]:
    """What a system reported, once it has ended."""
    out, errors, memory = found.answer()
    line = next((line for line in reversed(out.splitlines()) if line.startswith("{")), None)
    if line is None:
        print(errors[-3000:], file=sys.stderr)
        return {"failed": errors.strip().splitlines()[-1].replace(f"{HERE.parent}/", "")[:200]}
    return {**json.loads(line), **memory}


def run(
    work: Work, *, quick: bool, repeat: int, rounds: int | None, only: str, touched: int, earlier: dict[str, Any]
) -> dict[str, Any]:
    """All systems on one work, in turns and repeated; ``earlier``: a result that repetitions are added to."""
    count = rounds or (work.quick_rounds if quick else work.rounds)
    chosen = tuple(only.split(","))
    systems = [system for system in work.systems if (system.quick or not quick) and system.name.startswith(chosen)]
    load = max(others(), earlier.get("load_before", 0.0))
    found: dict[str, dict[str, Any]] = {
        system.name: {"label": system.label, "settings": dict(system.settings), "runs": []} for system in systems
    }
    done = earlier.get("repeat", 0)
    if earlier:
        if (earlier["rounds"], sorted(earlier["systems"]), earlier.get("touched")) != (count, sorted(found), touched):
            raise SystemExit("--add: the stored result has other rounds, systems or memory")
        for name, entry in found.items():
            entry["runs"] += earlier["systems"][name]["runs"]
    for repetition in range(done, done + repeat):
        for group in work.groups(systems):
            first = repetition * 3 % len(group)
            order = group[first:] + group[:first]
            limit = QUICK_LIMIT if quick else LIMIT
            players = play([partial(player, work, system, count, limit) for system in order], touched)
            for system, ended in zip(order, players, strict=True):
                result = result_of(ended)
                found[system.name]["runs"].append(result)
                shown = result.get("failed") or f"{median(result['seconds'][work.turn - 1 :]):.4f} s a round"
                print(f"({work.key}) {repetition + 1}/{done + repeat} {system.label}: {shown}", flush=True)
    spec = {key: value for key, value in work.of(systems[0], count).items() if key not in dict(systems[0].settings)}
    return {
        "work": work.key,
        "title": work.title,
        "spec": spec,
        "quick": quick,
        "repeat": done + repeat,
        "rounds": count,
        "turn": work.turn,
        "touched": touched,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "load_before": round(load, 2),
        "systems": found,
    }


def label_of(checkout: Path) -> str:
    """What a checkout is called: its commit."""
    done = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    )
    return f"undrift at {done.stdout.strip()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, one repetition, fewer settings")
    parser.add_argument("--work", default=",".join(WORKS), help=f"which of {','.join(WORKS)} (default: all)")
    parser.add_argument("--repeat", type=int, help="repetitions (default: 3, quick 1)")
    parser.add_argument("--add", action="store_true", help="add repetitions to the stored result")
    parser.add_argument("--rounds", type=int, help="rounds a run")
    parser.add_argument("--only", default="", metavar="NAME,…", help="only systems whose names begin so")
    parser.add_argument("--touch", type=int, default=256, metavar="MB", help="memory at hand before a turn (256)")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="only: another checkout of undrift beside this")
    parser.add_argument("--report", action="store_true", help="only write the tables again from the stored results")
    options = parser.parse_args()
    keys = options.work.split(",")
    if unknown := [key for key in keys if key not in WORKS]:
        parser.error(f"--work: {unknown[0]!r} is not one of {', '.join(WORKS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # systems that stand still must not be left behind
    works = [WORKS[key] for key in keys]
    if options.against:
        works = [against(options.against.resolve(), label_of(options.against))]
    folder = RESULTS / machine()["kind"]
    folder.mkdir(parents=True, exist_ok=True)
    for work in [] if options.report else works:
        for name in sorted({system.environment for system in work.systems} - {None}, key=str):
            prepare(str(name))
        stored = folder / f"{work.key}.json"
        result = run(
            work,
            quick=options.quick,
            repeat=options.repeat or (1 if options.quick else 3),
            rounds=options.rounds,
            only=options.only,
            touched=options.touch,
            earlier=json.loads(stored.read_text()) if options.add else {},
        )
        result["bars"] = [asdict(bar) for bar in work.bars]
        summarise(result)
        stored.write_text(json.dumps(result, indent=1) + "\n")
        print(*bar_lines(result), sep="\n", flush=True)
        write_readme(RESULTS)
    write_readme(RESULTS)
    print(f"wrote {RESULTS.relative_to(HERE.parent)}/README.md")


if __name__ == "__main__":
    main()
