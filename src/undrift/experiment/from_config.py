"""From a configuration to a run: data, partition, server data, model, plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import nn

from undrift import models
from undrift.core.plugins import called, own
from undrift.core.plugins import load as load_by_name
from undrift.core.vector import FlatModel
from undrift.data import DataSet, load, load_indices, load_server_file, partition, server_indices
from undrift.data.federation import Federation, Indices, federation
from undrift.data.samples import InMemory, Samples
from undrift.errors import ConfigError
from undrift.experiment.callbacks import logs_of
from undrift.experiment.config import Config
from undrift.experiment.engines import device_for, engine_named
from undrift.experiment.measures import chosen
from undrift.experiment.run_folder import RunFolder, stored_precision
from undrift.rounds.engine import MakeEngine
from undrift.rounds.loop import Progress, Result, Run
from undrift.rounds.plan import Plan
from undrift.rounds.prepare import prepare
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker
from undrift.rules.chain import Chain
from undrift.tasks import Loss
from undrift.tasks.metrics import metrics_named


def data_of(config: Config) -> DataSet:
    """The data set."""
    data = config.data
    return load(
        data.name,
        root=data.root,
        path=data.path,
        split=data.split,
        classes=data.classes,
        limit=data.limit,
        seed=config.partition_seed,
        samples=data.samples,
        features=data.features,
        heterogeneity=data.heterogeneity,
        clients=config.partition.clients or 30,
        label=data.label,
        client=data.client,
        test_path=data.test_path,
        test_share=data.test_share,
        standardise=data.standardise,
        numbers=config.task.name == "regression",
        size=data.size,
        arguments=data.arguments,
    )


def parts_of(config: Config, data: DataSet) -> list[Indices]:
    """Each client's rows of the training data."""
    spec = config.partition
    given = None
    if spec.scheme == "given":
        given = data.client if spec.file is None else load_indices(spec.file)
        if given is None:
            raise ConfigError("partition.scheme = 'given': the data has no client column; give partition.file")
    return partition(
        spec.scheme,
        _labels(data, f"partition.scheme = {spec.scheme!r}", spec.scheme in ("iid", "given")),
        spec.clients,
        config.partition_seed,
        classes=spec.classes,
        shards=spec.shards,
        alpha=spec.alpha,
        ratio=spec.ratio,
        min_samples=spec.min_samples,
        given=given,
    )


def clients_of(config: Config) -> int:
    """How many clients there are; data are loaded only where they say it."""
    return config.partition.clients or len(parts_of(config, data_of(config)))


def _labels(data: DataSet, key: str, only_counted: bool) -> Indices:
    """The class labels that samples are dealt out by; where only their number matters, any will do."""
    if data.labels is not None:
        return data.labels
    if not only_counted:
        raise ConfigError(f"{key} needs class labels; the targets of {data.name} are none")
    return np.zeros(len(data.train), dtype=np.int64)


def federation_of(config: Config, data: DataSet | None = None) -> Federation:
    """The federation: who has which data, and what the server has of its own."""
    data = data_of(config) if data is None else data
    parts = parts_of(config, data)
    server, parts = _server_data(config, data, parts)
    return federation(
        data.train,
        parts,
        server=server,
        test=data.test,
        validation=config.data.validation,
        client_test=config.partition.test,
        seed=config.partition_seed,
    )


def _server_data(config: Config, data: DataSet, parts: list[Indices]) -> tuple[Samples | None, list[Indices]]:
    spec = config.server_data
    if spec is None:
        return data.server, parts
    if spec.source == "file":
        if spec.path is None:
            raise ConfigError("server_data.path is missing: source = 'file' needs it")
        return InMemory(*load_server_file(spec.path, data)), parts
    drawn = server_indices(
        spec.source,
        _labels(data, f"server_data.source = {spec.source!r}", spec.source != "balanced"),
        parts,
        config.partition_seed,
        size=spec.size,
        contributors=spec.contributors,
        samples=spec.samples,
    )
    if spec.exclusive:
        parts = [part[~np.isin(part, drawn)] for part in parts]
        if empty := [client for client, part in enumerate(parts) if not len(part)]:
            raise ConfigError(f"server_data.exclusive = true: client {empty[0]} would have no data left")
    return InMemory(*data.train.take(drawn)), parts


class Described(Protocol):
    """What a network of ours has to know about the data."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one input."""
        ...

    @property
    def classes(self) -> int:
        """How many outputs are needed."""
        ...


def model_of(config: Config, data: DataSet) -> nn.Module:
    """The starting model."""
    module = fresh_model(config, data)
    if config.model.init is None:
        return module
    flat = FlatModel(module)
    flat.read(Path(config.model.init))
    module.load_state_dict(flat.state_dict())
    return module


def fresh_model(config: Config, data: Described) -> nn.Module:
    """The model for such data, as it was drawn: one of ours, or a user's own."""
    spec = config.model
    if spec.name not in models.names():
        return _own_model(config)
    if spec.arguments:
        raise ConfigError(f"model.arguments: only a model of your own has them, {spec.name!r} does not")
    return models.build(
        spec.name,
        input_shape=data.shape,
        classes=data.classes,
        norm=spec.norm,
        width=spec.width,
        hidden=tuple(spec.hidden),
        init_scheme=spec.initialisation,
        seed=config.seed,
    )


def _own_model(config: Config) -> nn.Module:
    """A user's own model, its random weights drawn from the seed."""
    spec = config.model
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(config.seed)
        module = called(spec.name, "model.name", dict(spec.arguments), models.names())
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model.name = {spec.name!r} gives {type(module).__name__}, no torch.nn.Module")
    return module


def plan_of(config: Config) -> Plan:
    """The settings of the training."""
    return Plan(
        **dict(config.train),
        augment=config.data.augment == "flip-crop",
        seed=config.seed,
        precision=config.engine.precision,
        targets=tuple(config.measure.targets),
        monitor=config.task.monitor,
    )


def device_of(config: Config) -> str:
    """The device to compute on."""
    return device_for(config.engine.device)


def refuse_unprotected(config: Config, rule: Chain) -> None:
    """Refuse server data that are samples of the clients' own, where clients are promised privacy."""
    spec, private = config.server_data, next((link.name for link in rule.links if link.expects), None)
    used = config.train.pretrain_epochs or any(link.needs_server_data for link in rule.links)
    if private is None or spec is None or not used or spec.source == "file":
        return
    if spec.source == "clients" or not spec.exclusive:
        raise ConfigError(
            f"server_data.source = {spec.source!r}: with {private!r} no samples of the clients' may reach the server; "
            "'file' is allowed, and 'balanced' or 'iid' with exclusive = true"
        )


def work_of(config: Config, data: DataSet | None = None) -> Work:
    """All that workers have to know."""
    rule = config.rule()
    refuse_unprotected(config, rule)
    data = data_of(config) if data is None else data
    return prepare(
        model_of(config, data),
        rule,
        federation_of(config, data),
        plan_of(config),
        loss_of(config),
        device_of(config),
        task=config.task.name,
        metrics=metrics_named(config.task.metrics),
    )


def loss_of(config: Config) -> Loss | None:
    """The loss that was asked for; None: the task's own."""
    if config.task.loss is None:
        return None
    found = own(config.task.loss, "task.loss")
    made: Loss = called(config.task.loss, "task.loss", {}) if isinstance(found, type) else found
    return made


Body = Callable[[Work, MakeEngine], Result]
"""A run, given its work and what makes its engine."""
FLOWER = "undrift.federation.run:run_on_sites"
"""What only some runs need, and what needs packages of its own, is loaded by name."""


def on_engine(config: Config, out: Path | None, resume: bool, data: DataSet | None, body: Body) -> Result:
    """Carry a run out on the engine that its configuration names."""
    engine = config.engine
    if engine.name == "flower":
        run_on_sites = load_by_name(FLOWER, "engine.name = 'flower'", "flower")
        return run_on_sites(config, out, resume, body)  # type: ignore[no-any-return]
    work = work_of(config, data)
    make = engine_named(engine.name, engine.address, engine.cpus_per_worker, engine.gpus_per_worker, engine.timeout)
    return body(work, make)


def run_config(
    config: Config,
    out: Path | None,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    data: DataSet | None = None,
    profile: bool = False,
    accept: Sequence[str] = (),
) -> Result:
    """Run a configuration; ``out`` gets the output folder. All input is checked before anything is written."""
    if config.engine.precision == "auto" and out is not None:
        config = config.with_(("engine.precision", stored_precision(out) or "auto"))

    def go(work: Work, make_engine: MakeEngine) -> Result:
        work = replace(work, profile=profile)
        measures = chosen(config.measure)
        for measure in measures:
            measure.begin(Worker(work))
        used = config.with_(("engine.precision", work.plan.precision))
        folder = None if out is None else RunFolder(out, used.complete(), resume=resume, accept=accept)
        return Run(
            work,
            make_engine,
            config.engine.workers,
            measures,
            folder,
            progress,
            callbacks=logs_of(config.log, out),
            checkpoint_seconds=config.engine.checkpoint_seconds,
        ).go()

    return on_engine(config, out, resume, data, go)
