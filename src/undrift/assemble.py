"""From a configuration to a run: data, partition, server data, model, plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from undrift import models
from undrift.config import Config
from undrift.data import DataSet, load, load_indices, load_server_file, partition, server_indices
from undrift.data.dataset import rows
from undrift.engines.auto import engine_for
from undrift.engines.base import Engine
from undrift.errors import ConfigError
from undrift.federation import Federation, Indices, Pair, federation
from undrift.folder import Folder
from undrift.measure.chosen import chosen
from undrift.plan import Plan
from undrift.schedule import Schedule
from undrift.simulate import Progress, Result, Run, prepare
from undrift.vector import FlatModel
from undrift.worker import Work, Worker


def data_of(config: Config) -> DataSet:
    """The data set."""
    data = config.data
    return load(
        data.name, root=data.root, path=data.path, split=data.split, classes=data.classes, limit=data.limit,
        seed=config.partition_seed, samples=data.samples, features=data.features, heterogeneity=data.heterogeneity,
        clients=config.partition.clients or 30,
    )  # fmt: skip


def parts_of(config: Config, data: DataSet) -> list[Indices]:
    """Each client's rows of the training data."""
    spec = config.partition
    given = None
    if spec.scheme == "given":
        given = data.client if spec.file is None else load_indices(spec.file)
        if given is None:
            raise ConfigError("partition.scheme = 'given': the data has no client column; give partition.file")
    return partition(
        spec.scheme, data.y_train.numpy(), spec.clients, config.partition_seed, classes=spec.classes,
        shards=spec.shards, alpha=spec.alpha, ratio=spec.ratio, min_samples=spec.min_samples, given=given,
    )  # fmt: skip


def federation_of(config: Config, data: DataSet | None = None) -> Federation:
    """The federation: who has which data, and what the server has of its own."""
    data = data_of(config) if data is None else data
    parts = parts_of(config, data)
    server, parts = _server_data(config, data, parts)
    return federation(
        data.x_train, data.y_train, parts, server=server, test=(data.x_test, data.y_test),
        validation=config.data.validation, seed=config.partition_seed,
    )  # fmt: skip


def _server_data(config: Config, data: DataSet, parts: list[Indices]) -> tuple[Pair | None, list[Indices]]:
    spec = config.server_data
    if spec is None:
        return None, parts
    if spec.source == "file":
        if spec.path is None:
            raise ConfigError("server_data.path is missing: source = 'file' needs it")
        return load_server_file(spec.path, data), parts
    drawn = server_indices(
        spec.source, data.y_train.numpy(), parts, config.partition_seed, size=spec.size,
        contributors=spec.contributors, samples=spec.samples,
    )  # fmt: skip
    index = torch.from_numpy(drawn)
    if spec.exclusive:
        parts = [part[~np.isin(part, drawn)] for part in parts]
        if empty := [client for client, part in enumerate(parts) if not len(part)]:
            raise ConfigError(f"server_data.exclusive = true: client {empty[0]} would have no data left")
    return (rows(data.x_train, index), data.y_train[index]), parts


def model_of(config: Config, data: DataSet) -> nn.Sequential:
    """The starting model."""
    spec = config.model
    module = models.build(
        spec.name, input_shape=data.shape, classes=data.classes, norm=spec.norm, width=spec.width,
        hidden=tuple(spec.hidden), init_scheme=spec.initialisation, seed=config.seed,
    )  # fmt: skip
    if spec.init is None:
        return module
    flat = FlatModel(module)
    flat.read(Path(spec.init))
    module.load_state_dict(flat.state_dict())
    return module


def plan_of(config: Config) -> Plan:
    """The settings of the training."""
    t = config.train
    return Plan(
        rounds=t.rounds, lr=Schedule(t.lr, t.schedule, t.lr_min, tuple(t.milestones), t.decay), cohort=t.cohort,
        local_epochs=t.local_epochs, local_steps=t.local_steps, batch_size=t.batch_size, server_lr=t.server_lr,
        weight_decay=t.weight_decay, weighting=t.weighting, eval_every=t.eval_every,
        pretrain_epochs=t.pretrain_epochs, pretrain_lr=t.pretrain_lr, augment=config.data.augment == "flip-crop",
        seed=config.seed, precision=config.engine.precision, targets=tuple(config.measure.targets),
    )  # fmt: skip


def device_of(config: Config) -> str:
    """The device to compute on."""
    wanted = config.engine.device
    usable = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return "cuda" if usable["cuda"] else "cpu"
    if not usable[wanted]:
        raise ConfigError(f"engine.device = {wanted!r}: there is no such device here")
    return wanted


def work_of(config: Config, data: DataSet | None = None) -> Work:
    """All that workers have to know."""
    rule = config.rule()
    data = data_of(config) if data is None else data
    return prepare(
        model_of(config, data), rule, federation_of(config, data), plan_of(config),
        nn.functional.cross_entropy, device_of(config),
    )  # fmt: skip


MakeEngine = Callable[[Work, Worker, int | None], Engine]


@contextlib.contextmanager
def _installed(extra: str, package: str) -> Iterator[None]:
    """Say what to install where an engine's package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ConfigError(f"engine.name = {extra!r} needs: pip install 'undrift[{extra}]'") from None


def maker_of(config: Config) -> MakeEngine:
    """What makes the engine."""
    if config.engine.name == "ray":
        with _installed("ray", "ray"):
            from undrift.engines.ray import ray_engine

        return ray_engine(config.engine)
    return engine_for


def run_config(
    config: Config,
    out: Path | None,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    data: DataSet | None = None,
    profile: bool = False,
) -> Result:
    """Run a configuration; ``out`` gets the output folder. All input is checked before anything is written."""

    def go(work: Work, make_engine: MakeEngine) -> Result:
        work = replace(work, profile=profile)
        measures = chosen(config.measure)
        for measure in measures:
            measure.begin(Worker(work))
        folder = None if out is None else Folder(out, config.complete(), resume=resume)
        return Run(
            work, config.engine.workers, measures, folder, progress=progress, make_engine=make_engine,
            checkpoint_seconds=config.engine.checkpoint_seconds,
        ).go()  # fmt: skip

    if config.engine.name == "flower":
        with _installed("flower", "flwr"):
            from undrift.flower.run import run_on_sites

        return run_on_sites(config, out, resume, go)
    return go(work_of(config, data), maker_of(config))
