"""``undrift run`` on a real federation: who takes part, with how many samples, and what is refused."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from undrift.core.files import read_lines, read_with, write_atomic, write_json
from undrift.core.text import printable
from undrift.core.version import VERSION
from undrift.data import DataSet, load_server_file
from undrift.data.checks import as_floats, check_labels, check_lengths, kind_of
from undrift.data.federation import Federation
from undrift.data.formats import read_npz
from undrift.data.samples import InMemory, Samples
from undrift.errors import ConfigError, DataError, RunError, UnreadableError
from undrift.experiment.checkpoint import Checkpoints
from undrift.experiment.config import Config
from undrift.experiment.from_config import data_of, device_of, loss_of, model_of, plan_of
from undrift.federation.engine import AtSites, Exchange, Flower, Terms
from undrift.federation.link import Link, on_grid
from undrift.federation.messages import RefusedError, meta_of, pack
from undrift.federation.setup import ServerFolder
from undrift.federation.site import Task
from undrift.rounds.engine import Engine, MakeEngine
from undrift.rounds.prepare import prepare
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker
from undrift.rules.rule import Owns, RoundKind
from undrift.tasks.metrics import metrics_named

T = TypeVar("T")
Body = Callable[[Work, MakeEngine], T]


def run_on_sites(config: Config, out: Path | None, resume: bool, body: Body[T]) -> T:
    """Open the federation and run ``body`` with its work and its engine."""
    refuse(config)
    assert config.engine.federation is not None
    server = ServerFolder.read(Path(config.engine.federation))
    return on_grid(server, lambda grid: over(config, Link(grid, server), server.sites, out, resume, body))


def over(
    config: Config, exchange: Exchange, sites: tuple[str, ...], out: Path | None, resume: bool, body: Body[T]
) -> T:
    """Run ``body`` over this exchange with these sites."""
    data = server_data(config)
    task = Task.describing(data)
    if Owns.CLIENT_DATA in config.rule().owns and (task.inputs, task.targets, task.target_shape) != _PLAIN:
        raise ConfigError(f"algorithm.name = {config.algorithm['name']!r}: on Flower only classes can be shared")
    census = _Census.read(out) if resume and out is not None else None
    census = roll_call(config, exchange, sites, task, census)
    work = work_of(config, data, list(census.samples.values()))
    wire = Worker(work).messages(aligned=False)
    settings = {key: value for key, value in config.complete().items() if key in _SENT}
    settings["model"].pop("init", None)
    settings["task"].pop("metrics", None)  # measured here
    settings["engine"] = {"precision": work.plan.precision}
    settings["data"] = {"augment": config.data.augment}
    terms = Terms(
        census.run,
        sites,
        json.dumps(settings),
        task.to_json(),
        wire,
        config.engine.min_sites,
        config.engine.round_timeout,
        (lambda: 1 << 62) if out is None else Checkpoints(out).safe,
        (lambda: None) if out is None else lambda: _begin(census, out),
        (lambda round, norms: None) if out is None else lambda round, norms: _note(out, round, norms),
        config.engine.max_norm,
    )
    made: list[Flower] = []

    def make(work: Work, worker: Worker, workers: int | None) -> Engine:
        made.append(Flower(work, worker, exchange, terms))
        return made[0]

    result = body(replace(work, rule=AtSites(work.rule.links)), make)
    made[0].finish()
    return result


def _begin(census: _Census, out: Path) -> None:
    """Before the first round of this part of a run; of earlier notes those stay that its checkpoint stands for."""
    census.write(out)
    last = Checkpoints(out).newest_round()
    kept = [line for line in read_lines(out / SITES) if line["round"] <= last] if (out / SITES).exists() else []
    write_atomic(out / SITES, "".join(json.dumps(line) + "\n" for line in kept))


def _note(out: Path, round: int, norms: Mapping[str, float]) -> None:
    """How large each site's accepted update was."""
    with open(out / SITES, "a") as file:
        file.write(json.dumps({"round": round, "norms": dict(norms)}) + "\n")


SITES = "sites.jsonl"
_SENT = ("seed", "model", "task", "algorithm", "attack", "train")
"""The sections of a configuration that sites need."""
_PLAIN = ("float32", "int64", ())
"""Inputs and targets of a classification."""


def refuse(config: Config) -> None:
    """Refuse what a federation of real sites cannot do."""
    if config.engine.federation is None:
        raise ConfigError("engine.federation is missing: the server's folder of `undrift federation init`")
    if config.data.validation:
        raise ConfigError("data.validation: sites' data stay where they are; the server cannot hold any of them out")
    if config.server_data is not None and config.server_data.source != "file":
        raise ConfigError(
            f"server_data.source = {config.server_data.source!r}: on Flower the server has only data of its own; "
            "'file' is allowed"
        )
    name, rule = config.algorithm["name"], config.rule()
    if Owns.EVERYTHING in rule.owns:
        raise ConfigError(f"algorithm.name = {name!r}: sites' data are not pooled on Flower")
    if rule.kind is RoundKind.SPLIT:
        raise ConfigError(
            f"algorithm.name = {name!r}: split learning exchanges messages in every step, and Flower's polling "
            "takes seconds for each; use engine.name = 'local' or 'ray'"
        )
    if config.attack is not None and config.attack.kind == "label-flip":
        raise ConfigError(
            "attack.kind = 'label-flip': sites' labels stay as they are; use engine.name = 'local' or 'ray'"
        )
    if rule.acting("draw") and not rule.expects:
        raise ConfigError(
            f"algorithm.name = {name!r}: sites are not asked for their loss before a round; "
            "use engine.name = 'local' or 'ray'"
        )
    for measure in ("gradients", "clients", "skew"):
        if getattr(config.measure, measure, False):
            raise ConfigError(f"measure.{measure}: needs the clients' data, which stay at the sites")


@dataclass(frozen=True)
class _Census:
    """Which run this is, and how many samples each site has; the same for its whole length."""

    run: str
    samples: dict[str, int]

    @staticmethod
    def read(out: Path) -> _Census | None:
        """What an earlier part of the run wrote."""
        try:
            return read_with(out / "federation.json", _census) if (out / "federation.json").exists() else None
        except UnreadableError as error:
            raise ConfigError(str(error)) from None

    def write(self, out: Path) -> None:
        """For those who resume."""
        write_json(out / "federation.json", {"run": self.run, "sites": self.samples})


def _census(raw: bytes) -> _Census:
    given = json.loads(raw)
    return _Census(str(given["run"]), {str(k): int(v) for k, v in given["sites"].items()})


def roll_call(config: Config, exchange: Exchange, sites: tuple[str, ...], task: Task, known: _Census | None) -> _Census:
    """Wait for the sites and ask each what it has; a resumed run needs only some of them."""
    timeout, least = config.engine.round_timeout, min(config.engine.min_sites, len(sites))
    if known is not None and set(known.samples) != set(sites):
        raise ConfigError(f"the run to resume is of the sites {', '.join(known.samples)}, not {', '.join(sites)}")
    here = exchange.await_sites(sites, len(sites), timeout)
    if len(here) < (len(sites) if known is None else least):
        missing = ", ".join(name for name in sites if name not in here)
        raise RunError(f"after {timeout:g} s these sites are not connected: {missing}")
    answers = exchange.ask("hello", {name: pack({"task": task.to_json()}) for name in here}, timeout)
    if known is not None:  # who is connected but does not answer is as good as away
        here = [name for name in here if not isinstance(answers[name], str)]
        if len(here) < least:
            raise RunError(f"{len(here)} of {least} sites answered: {_told(answers)}")
    found = {name: _samples(name, answers[name], config) for name in here}
    if known is None:
        return _Census(secrets.token_hex(16), {name: found[name] for name in sites})
    for name, samples in found.items():
        if samples != known.samples[name]:
            raise ConfigError(f"site {name} has {samples} samples; it had {known.samples[name]} when the run began")
    return _Census(known.run, {name: known.samples[name] for name in sites})


def _told(answers: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {printable(a, 300)}" for name, a in answers.items() if isinstance(a, str))


def _samples(name: str, answer: Any, config: Config) -> int:
    if isinstance(answer, str):
        raise RunError(f"site {name}: {printable(answer, 300)}")
    try:
        meta = meta_of(answer, samples=int, problem=str, version=str, allow_shared_data=bool)
    except RefusedError as error:
        raise RunError(f"site {name}: {printable(str(error), 300)}") from None
    if meta["problem"]:
        raise DataError(f"site {name}: {printable(meta['problem'], 300)}")
    if meta["version"] != VERSION:
        raise RunError(f"site {name} runs undrift {printable(meta['version'], 20)}, the server {VERSION}")
    if Owns.CLIENT_DATA in config.rule().owns and not meta["allow_shared_data"]:
        raise ConfigError(
            f"site {name} does not take shared data; its operator can allow it (site.toml: allow_shared_data = true)"
        )
    if meta["samples"] < 1:
        raise DataError(f"site {name} has no samples")
    if meta["samples"] > config.engine.most_samples:
        raise DataError(
            f"site {name} says that it has {meta['samples']} samples; "
            f"engine.most_samples = {config.engine.most_samples} are believed"
        )
    return int(meta["samples"])


def server_data(config: Config) -> DataSet:
    """What the server has: test data, and the form that everybody's data have."""
    if config.data.name != "npz" or config.data.path is None:
        return data_of(config)
    path = Path(config.data.path)
    arrays = read_npz(path, ("x_test", "y_test"), ("x_train", "y_train"))
    if "x_train" in arrays:
        return data_of(config)
    x, y, where = arrays["x_test"], arrays["y_test"], f"{path}: x_test"
    check_lengths(x, y, where, "y_test")
    if kind_of(x, where) != "floats":
        raise DataError(f"{where}: without x_train only floating inputs, already normalised, can be used")
    labels = torch.from_numpy(check_labels(y, f"{path}: y_test"))
    inputs = as_floats(x, where)
    classes = config.data.classes or int(labels.max()) + 1
    return DataSet("npz", InMemory(inputs[:0], labels[:0]), InMemory(inputs, labels), classes)


def work_of(config: Config, data: DataSet, samples: list[int]) -> Work:
    """The server's work: every client's size, nobody's rows."""
    offsets = np.concatenate([[0], np.cumsum(samples)]).astype(np.int64)
    server: Samples | None = None
    if config.server_data is not None:
        if config.server_data.path is None:
            raise ConfigError("server_data.path is missing: source = 'file' needs it")
        server = InMemory(*load_server_file(config.server_data.path, data))
    federation = Federation(
        InMemory(data.x_train[:0], data.y_train[:0]),
        np.zeros(int(offsets[-1]), dtype=np.int64),
        offsets,
        server,
        data.test,
    )
    return prepare(
        model_of(config, data),
        config.rule(),
        federation,
        plan_of(config),
        loss_of(config),
        device_of(config),
        task=config.task.name,
        metrics=metrics_named(config.task.metrics),
    )
