"""What the candidates of a race share, and how one of them goes on from where it stopped.

All candidates train on the same federation, draw the same clients and are evaluated on the same validation data. Test
data are neither needed nor looked at, which also saves the time that a usual run spends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from undrift.core.files import read_lines
from undrift.core.nested import leaves
from undrift.data import DataSet
from undrift.data.federation import Federation
from undrift.data.samples import InMemory, Samples
from undrift.engines.auto import engine_for
from undrift.experiment.checkpoint import Checkpoints
from undrift.experiment.config import Config
from undrift.experiment.from_config import device_of, federation_of, loss_of, model_of, plan_of
from undrift.experiment.run_folder import RunFolder
from undrift.experiment.run_many import Planned, data_key, run_many
from undrift.rounds.loop import Progress, Run
from undrift.rounds.prepare import prepare
from undrift.rounds.progress import Record
from undrift.rounds.work import Work
from undrift.tasks.metrics import metrics_named

ENOUGH = 1000
"""Validation samples that are asked for where the configuration holds out none ..."""
SHARES = (0.05, 0.2)
"""... which takes this share of every client's data at least, and this at most."""
Watch = Callable[[int, str, str], None]
"""Told (runs done, the name of one under way, how far it has come)."""


@dataclass(frozen=True)
class Track:
    """The federation that all candidates race on, without test data, and the configuration that they vary."""

    config: Config
    data: DataSet
    federation: Federation

    @property
    def samples(self) -> int:
        """Validation samples; 0: there is nothing to decide by."""
        return 0 if self.federation.validation is None else len(self.federation.validation)


def share_of(samples: int, typical: float) -> float:
    """The share that every client holds out; a typical client at least one sample, if that is not too much."""
    share = min(max(ENOUGH / max(samples, 1), SHARES[0]), SHARES[1])
    one = 0.51 / typical  # what is rounded to one
    return one if share < one <= SHARES[1] else share


def track_of(config: Config, data: DataSet) -> Track:
    """The federation with validation data held out."""
    sizes = federation_of(config, data).sizes
    share = config.data.validation or share_of(int(sizes.sum()), float(np.median(sizes)))
    config = config.with_(("data.validation", share), ("train.eval_every", 1), ("train.patience", None))
    federation = federation_of(config, data)
    validation = unseen(federation.validation, federation.server)
    return Track(config, data, replace(federation, test=None, tests=None, validation=validation))


def unseen(validation: Samples | None, server: Samples | None) -> Samples | None:
    """The validation samples that the server does not have too: it would learn them by heart."""
    if validation is None or server is None:
        return validation
    known = set(_each(server))
    kept = np.array([row for row, content in enumerate(_each(validation)) if content not in known], dtype=np.int64)
    return InMemory(*validation.take(kept)) if len(kept) else None


def _each(samples: Samples) -> list[bytes]:
    """Every sample's inputs as bytes."""
    inputs, _ = samples.take(np.arange(len(samples)))
    arrays = [leaf.numpy() for leaf in leaves(inputs)]
    return [b"".join(array[row].tobytes() for array in arrays) for row in range(len(samples))]


def work_on(track: Track, config: Config) -> Work:
    """A candidate's work on the shared federation."""
    return prepare(
        model_of(config, track.data),
        config.rule(),
        track.federation,
        plan_of(config),
        loss_of(config),
        device_of(config),
        task=config.task.name,
        metrics=metrics_named(config.task.metrics),
    )


def advance(
    track: Track, planned: Sequence[Planned], until: int, watch: Watch | None = None, jobs: int | None = None
) -> dict[str, str]:
    """Bring every candidate up to a round, from where it is; returns the failures, name -> message."""

    def carry_out(one: Planned, data: DataSet, progress: Progress) -> None:
        go_on(track, one, until, progress)

    behind = [one for one in planned if Checkpoints(one.out).newest_round() < until]
    loaded = {data_key(track.config): track.data}
    return run_many(behind, jobs=jobs, watch=watch, loaded=loaded, carry_out=carry_out)


def go_on(track: Track, one: Planned, until: int, progress: Progress | None = None) -> None:
    """Continue one candidate up to a round; its configuration is that of the whole length, schedules included."""
    held = (one.out / "config.toml").exists()
    folder = RunFolder(one.out, one.config.complete(), resume=held)
    there = (lambda record: record["round"] >= until,)
    Run(work_on(track, one.config), engine_for, 0, (), folder, progress, there).go()


def records(folder: Path, until: int) -> list[Record]:
    """A candidate's evaluations up to a round, whether it has gone further or not."""
    return [record for record in read_lines(folder / "metrics.jsonl") if record["round"] <= until]
