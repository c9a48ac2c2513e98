"""What can be told of a run's evaluation records: other tools, and a reason to end early.

A callback is a function of every finished evaluation record, called once for each, in order; one that returns True
ends the run there, saved and complete. The tools' packages are imported only when a callback is made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from undrift.errors import ConfigError
from undrift.experiment.config import LogConfig
from undrift.rounds.loop import Callback
from undrift.rounds.progress import Monitor, Record


def numbers(record: Record) -> dict[str, float]:
    """The numbers of a record, nested ones under dotted names."""
    found: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": number for key, number in numbers(dict(value)).items()}
        elif isinstance(value, int | float) and not isinstance(value, bool) and name != "round":
            found[name] = float(value)
    return found


class TensorBoard:
    """Writes TensorBoard's event files into a folder."""

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError("TensorBoard needs tensorboard: pip install 'undrift[log]'") from None
        self._make: Callable[[], Any] = lambda: SummaryWriter(str(folder))
        self._writer: Any = None

    def __call__(self, record: Record) -> None:
        """Write one evaluation."""
        self._writer = self._writer or self._make()  # nothing is written before there is something to write
        for name, value in numbers(record).items():
            self._writer.add_scalar(name, value, record["round"])
        self._writer.flush()


class MLflow:
    """Logs to MLflow: ``uri`` is a folder or the address of a tracking server."""

    def __init__(self, uri: str | Path | None = None, experiment: str = "undrift", run: str | None = None) -> None:
        try:
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise ConfigError("MLflow needs mlflow: pip install 'undrift[log]'") from None
        if uri is not None and "://" not in str(uri):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow asks for this where runs lie in a folder
        self._client = MlflowClient(None if uri is None else _address(uri))
        found = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if found is None else found.experiment_id
        self.run = self._client.create_run(number, run_name=run).info.run_id

    def __call__(self, record: Record) -> None:
        """Log one evaluation."""
        for name, value in numbers(record).items():
            self._client.log_metric(self.run, name, value, step=record["round"])


def _address(uri: str | Path) -> str:
    return str(uri) if "://" in str(uri) else Path(uri).absolute().as_uri()


class WandB:
    """Logs to Weights & Biases; ``options`` are those of ``wandb.init`` (``mode="offline"``, ``dir=…``)."""

    def __init__(self, project: str, **options: Any) -> None:
        try:
            import wandb
        except ImportError:
            raise ConfigError("Weights & Biases needs wandb: pip install 'undrift[log]'") from None
        self._run = wandb.init(project=project, **options)

    def __call__(self, record: Record) -> None:
        """Log one evaluation."""
        self._run.log(numbers(record), step=record["round"])

    def close(self) -> None:
        """Tell W&B that the run is over."""
        self._run.finish()


class EarlyStopping:
    """Ends a run after ``patience`` evaluations without a better value of ``monitor`` (``accuracy``, ``-loss``)."""

    def __init__(self, monitor: str = "accuracy", patience: int = 10) -> None:
        if patience < 1:
            raise ConfigError(f"EarlyStopping: patience = {patience}, at least 1 is needed")
        self.monitor, self.patience = Monitor.of(monitor), patience
        self._best: float | None = None
        self._since = 0

    def __call__(self, record: Record) -> bool:
        """Whether it is time to end."""
        sets = ("validation", "test")
        value = next((v for name in sets if (v := record.get(f"{name}_{self.monitor.metric}")) is not None), None)
        if value is None:
            raise ConfigError(f"EarlyStopping: nothing evaluated is called {self.monitor.metric!r}")
        if self._best is None or self.monitor.better(value, self._best):
            self._best, self._since = value, 0
        else:
            self._since += 1
        return self._since >= self.patience


def logs_of(log: LogConfig, out: Path | None) -> tuple[Callback, ...]:
    """The callbacks that ``[log]`` asks for."""
    found: list[Callback] = []
    if log.tensorboard:
        if out is None:
            raise ConfigError("log.tensorboard: give --out, the events are written into that folder")
        found.append(TensorBoard(out / "tensorboard"))
    if log.mlflow is not None:
        found.append(MLflow(log.mlflow, run=None if out is None else out.name))
    if log.wandb is not None:
        found.append(WandB(log.wandb))
    return tuple(found)
