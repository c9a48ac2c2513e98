"""Many independent runs, spread over the cores: one process for each run that is under way.

Where no other run is left to fill a core, the last one gets worker processes of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from undrift.experiment.run_folder import stored_precision
from undrift.rounds.loop import Progress
from undrift.rounds.precision import SlowPrecisionWarning
from undrift.rounds.progress import note_of


@dataclass(frozen=True)
class Planned:
    """One run to make: a name, a configuration, a folder."""

    name: str
    config: Config
    out: Path


_PATIENCE = 10.0
"""Seconds in which a run that is asked to end may finish its round and save it."""


_SOON = 0.3
"""A run with a smaller share of its rounds left ends soon."""

CarryOut = Callable[[Planned, DataSet, Progress], object]
"""Makes or finishes one run, in a process of its own."""


class Refusal(str):
    """The message of a run whose input is wrong."""


def check(runs: Sequence[Planned], loaded: dict[str, DataSet]) -> None:
    """Refuse wrong input before the first run starts; seeds change only draws, so one run of each setting will do."""
    settings = {repr(planned.config.with_(("seed", 0))): planned.config for planned in reversed(runs)}
    with warnings.catch_warnings():
        for config in reversed(settings.values()):
            work_of(config, _data(config, loaded))
            if config.engine.precision == "bf16":  # that it is slow here is said once
                warnings.simplefilter("ignore", SlowPrecisionWarning)


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
    loaded = {} if loaded is None else loaded
    waiting, under_way = deque(_computing_alike(runs, loaded)), dict[Connection, tuple[Planned, ForkProcess]]()
    left: dict[Connection, float] = {}
    failures: dict[str, str] = {}
    done, jobs = 0, jobs or cores()
    try:
        with interruptible() as interrupted:  # asked for, not raised anywhere: a fork's hooks would swallow it
            while waiting or under_way:
                while waiting and len(under_way) < jobs and not until():
                    planned = waiting.popleft()
                    if carry_out is None:
                        workers = workers_for(jobs, len(waiting), [left.get(pipe, 1.0) for pipe in under_way])
                        planned = replace(planned, config=planned.config.with_(("engine.workers", workers)))
                    under_way |= [_start(planned, _data(planned.config, loaded), carry_out or _run)]
                if not under_way:
                    break
                for pipe in wait(list(under_way), timeout=0.5):
                    assert isinstance(pipe, Connection)
                    planned, process = under_way[pipe]
                    kind, text, left[pipe] = _receive(pipe)
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


def _computing_alike(runs: Sequence[Planned], loaded: dict[str, DataSet]) -> list[Planned]:
    """The runs, those that leave the precision open with one and the same for each model: they are to be compared."""
    open_ = {planned.name: _computed(planned.config) for planned in runs if planned.config.engine.precision == "auto"}
    found = {open_[run.name]: used for run in runs if run.name in open_ and (used := stored_precision(run.out))}
    for run in runs:
        if run.name in open_ and open_[run.name] not in found:
            found[open_[run.name]] = work_of(run.config, _data(run.config, loaded)).plan.precision
    used = {name: found[kind] for name, kind in open_.items()}
    return [
        replace(run, config=run.config.with_(("engine.precision", used.get(run.name, run.config.engine.precision))))
        for run in runs
    ]


def _computed(config: Config) -> str:
    """What the time of a step depends on."""
    return repr((config.data.name, config.model, config.train.batch_size))


def workers_for(jobs: int, waiting: int, left: Sequence[float]) -> int:
    """Worker processes for a run that starts while others have these shares of their rounds left; 0: none.

    Only a run that will soon be alone gets any: while others need the cores, they would only take turns.
    """
    return jobs if jobs > 1 and not waiting and all(share < _SOON for share in left) else 0


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
    # A daemon of Python's may have no processes of its own; that ours end with us is seen to in another way.
    alone = not planned.config.engine.workers
    process = context.Process(target=_one, args=(planned, data, theirs, os.getpid(), carry_out), daemon=alone)
    process.start()
    theirs.close()
    return ours, (planned, process)


def _run(planned: Planned, data: DataSet, progress: Progress) -> None:
    held = (planned.out / "config.toml").exists()
    run_config(planned.config, planned.out, resume=held, data=data, progress=progress)


def _one(planned: Planned, data: DataSet, pipe: Connection, parent: int, carry_out: CarryOut) -> None:
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to handle: it asks with SIGTERM
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, signal.SIG_DFL)
    warnings.simplefilter("ignore", SlowPrecisionWarning)  # said before the first run
    settle()  # a fork has none of its parent's threads; waiting for them would last for ever

    def tell(round: int, rounds: int, record: dict[str, Any] | None) -> None:
        pipe.send(("round", f"round {round}/{rounds}  {note_of(record)}", 1 - round / max(1, rounds)))

    try:
        carry_out(planned, data, tell)
        pipe.send(("done", "done", 0.0))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except InputError as error:
        pipe.send(("refused", str(error), 0.0))
    except UndriftError as error:
        pipe.send(("failed", str(error), 0.0))
    except Exception as error:
        pipe.send(("failed", f"{type(error).__name__}: {error}", 0.0))


def _receive(pipe: Connection) -> tuple[str, str, float]:
    try:
        kind, text, left = pipe.recv()
        return kind, text, left
    except EOFError:
        return "failed", "the process ended without a word", 0.0


def raise_first(failures: dict[str, str]) -> None:
    """Turn failures into one error that names the runs."""
    if failures:
        name, message = next(iter(failures.items()))
        more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        kind = InputError if isinstance(message, Refusal) else RunError
        raise kind(f"{name}: {message}{more}")
