"""Many independent runs, spread over the cores: one process for each run that is under way."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from undrift.core.numerics import settle
from undrift.core.processes import die_with
from undrift.core.signals import interruptible
from undrift.data import DataSet
from undrift.engines.auto import cores
from undrift.errors import InputError, RunError, UndriftError
from undrift.experiment.config import Config
from undrift.experiment.from_config import data_of, run_config, work_of
from undrift.rounds.loop import Progress
from undrift.rounds.progress import note_of


@dataclass(frozen=True)
class Planned:
    """One run to make: a name, a configuration, a folder."""

    name: str
    config: Config
    out: Path


_PATIENCE = 10.0
"""Seconds in which a run that is asked to end may finish its round and save it."""


CarryOut = Callable[[Planned, DataSet, Progress], object]
"""Makes or finishes one run, in a process of its own."""


class Refusal(str):
    """The message of a run whose input is wrong."""


def check(runs: Sequence[Planned], loaded: dict[str, DataSet]) -> None:
    """Refuse wrong input before the first run starts; seeds change only draws, so one run of each setting will do."""
    settings = {repr(planned.config.with_(("seed", 0))): planned.config for planned in reversed(runs)}
    for config in reversed(settings.values()):
        work_of(config, _data(config, loaded))


def run_many(
    runs: Sequence[Planned],
    *,
    jobs: int | None = None,
    watch: Callable[[int, str, str], None] | None = None,
    until: Callable[[], bool] = lambda: False,
    loaded: dict[str, DataSet] | None = None,
    carry_out: CarryOut | None = None,
) -> dict[str, str]:
    """Make (or finish) all runs; returns the failures, name -> message. No new run starts once ``until()`` is true.

    Runs that need the same data set share one copy of it: it is loaded here and inherited by the forks.
    ``carry_out``: what makes a run, where it is not its configuration alone.
    """
    waiting, under_way = deque(runs), dict[Connection, tuple[Planned, ForkProcess]]()
    failures: dict[str, str] = {}
    loaded = {} if loaded is None else loaded
    done = 0
    try:
        with interruptible() as interrupted:  # asked for, not raised anywhere: a fork's hooks would swallow it
            while waiting or under_way:
                while waiting and len(under_way) < (jobs or cores()) and not until():
                    planned = waiting.popleft()
                    under_way |= [_start(planned, _data(planned.config, loaded), carry_out or _run)]
                if not under_way:
                    break
                for pipe in wait(list(under_way), timeout=0.5):
                    assert isinstance(pipe, Connection)
                    planned, process = under_way[pipe]
                    kind, text = _receive(pipe)
                    if kind != "round":
                        under_way.pop(pipe)
                        process.join()
                        done += 1
                    if kind in ("failed", "refused"):
                        failures[planned.name] = Refusal(text) if kind == "refused" else text
                    if watch:
                        watch(done, planned.name, text)
                if interrupted():
                    raise KeyboardInterrupt
    finally:
        _stop([process for _, process in under_way.values()])
        for pipe in under_way:
            pipe.close()
    return failures


def _stop(processes: Sequence[ForkProcess]) -> None:
    """Ask runs to save what they have and to end; those that cannot for a while are ended."""
    for process in processes:
        process.terminate()
    end = time.monotonic() + _PATIENCE
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
        process.kill()
        process.join()


def data_key(config: Config) -> str:
    """What tells data sets apart: all that they are loaded by."""
    return repr(
        (
            config.data.model_copy(update={"validation": 0.0}),
            config.partition_seed if config.data.limit or config.data.name == "synthetic" else 0,
            config.partition.clients if config.data.name == "synthetic" else 0,
        )
    )


def _data(config: Config, loaded: dict[str, DataSet]) -> DataSet:
    key = data_key(config)
    if key not in loaded:
        loaded.clear()
        loaded[key] = data_of(config)
    return loaded[key]


def _start(planned: Planned, data: DataSet, carry_out: CarryOut) -> tuple[Connection, tuple[Planned, ForkProcess]]:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_one, args=(planned, data, theirs, os.getpid(), carry_out), daemon=True)
    process.start()
    theirs.close()
    return ours, (planned, process)


def _run(planned: Planned, data: DataSet, progress: Progress) -> None:
    held = (planned.out / "config.toml").exists()
    config = planned.config.with_(("engine.workers", 0))
    run_config(config, planned.out, resume=held, data=data, progress=progress)


def _one(planned: Planned, data: DataSet, pipe: Connection, parent: int, carry_out: CarryOut) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle: it asks with SIGTERM
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, signal.SIG_DFL)
    settle()  # a fork has none of its parent's threads; waiting for them would last for ever

    def tell(round: int, rounds: int, record: dict[str, Any] | None) -> None:
        pipe.send(("round", f"round {round}/{rounds}  {note_of(record)}"))

    try:
        carry_out(planned, data, tell)
        pipe.send(("done", "done"))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except InputError as error:
        pipe.send(("refused", str(error)))
    except UndriftError as error:
        pipe.send(("failed", str(error)))
    except Exception as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}"))


def _receive(pipe: Connection) -> tuple[str, str]:
    try:
        kind, text = pipe.recv()
        return kind, text
    except EOFError:
        return "failed", "the process ended without a word"


def raise_first(failures: dict[str, str]) -> None:
    """Turn failures into one error that names the runs."""
    if failures:
        name, message = next(iter(failures.items()))
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        kind = InputError if isinstance(message, Refusal) else RunError
        raise kind(f"{name}: {message}{more}")
