"""A site's side of the exchange: its own data, its own disk, and an answer to each of the server's messages."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import RecordDict
from safetensors.torch import load_file, save
from torch import Tensor

from undrift.core.files import read_object, write_atomic, write_json
from undrift.core.plugins import look_in, places_in
from undrift.core.tree import clone
from undrift.core.version import VERSION
from undrift.data import DataSet, load_server_file
from undrift.data.federation import Federation
from undrift.data.samples import InMemory
from undrift.errors import ConfigError, DataError, RunError, UnreadableError
from undrift.experiment.config import Config, parse
from undrift.experiment.from_config import device_of, fresh_model, loss_of, plan_of
from undrift.federation.messages import RefusedError, meta_of, pack, vector_of
from undrift.federation.setup import SiteFolder
from undrift.federation.site_store import SiteStore
from undrift.rounds.messages import Broadcast, ClientTask, Messages
from undrift.rounds.plan import SMALLEST
from undrift.rounds.prepare import bound
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker
from undrift.rules import parts_of

LARGEST = 1 << 28
"""Numbers in one sample, or classes: no data have more."""
_CLIENTS, _RATE = 1_000_000, 1e37
_DESCRIPTION = 100_000
"""Letters in which data are described."""


SENT = frozenset({"seed", "model", "algorithm", "attack", "task", "train", "engine", "data"})
"""The sections of a configuration that the server sends."""
_KINDS = {"float32": torch.float32, "int64": torch.int64}


@dataclass(frozen=True)
class Task:
    """What the server says about the data: enough to build the model, nothing about anybody's samples."""

    shape: tuple[int, ...]
    classes: int
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    inputs: str = "float32"
    targets: str = "int64"
    target_shape: tuple[int, ...] = ()

    @staticmethod
    def describing(data: DataSet) -> Task:
        """What there is to say about these data."""
        inputs, targets = (str(part.dtype).removeprefix("torch.") for part in (data.x_test, data.y_test))
        return Task(data.shape, data.classes, data.mean, data.std, inputs, targets, tuple(data.y_test.shape[1:]))

    def to_json(self) -> str:
        """As text."""
        return json.dumps(vars(self))

    @staticmethod
    def of(text: str) -> Task:
        """From text."""
        try:
            given = json.loads(text[:_DESCRIPTION])
            mean, std = (None if given[k] is None else tuple(map(float, given[k])) for k in ("mean", "std"))
            kinds = str(given.get("inputs", "float32")), str(given.get("targets", "int64"))
            targets = tuple(map(int, given.get("target_shape", ())))
            task = Task(tuple(map(int, given["shape"])), int(given["classes"]), mean, std, *kinds, targets)
            if not set(kinds) <= _KINDS.keys() or min(targets, default=1) < 1 or math.prod(targets) > LARGEST:
                raise ValueError("targets that no data have")
            if min(task.shape) < 1 or math.prod(task.shape) > LARGEST or not 1 <= task.classes <= LARGEST:
                raise ValueError("a shape or a number of classes that no data have")
            return task
        except (ValueError, TypeError, LookupError, RecursionError, OverflowError) as error:
            raise RefusedError(f"the description of the data cannot be read ({error})") from None

    def like(self) -> DataSet:
        """An empty data set of this kind."""
        x = torch.empty(0, *self.shape, dtype=_KINDS[self.inputs])
        y = torch.empty(0, *self.target_shape, dtype=_KINDS[self.targets])
        return DataSet("the federation's data", InMemory(x, y), InMemory(x, y), self.classes, None, self.mean, self.std)


@dataclass
class _Bench:
    """What a site builds once for a run."""

    key: tuple[Any, ...]
    worker: Worker
    wire: Messages


class Site:
    """Answers messages; holds the data in memory and what it keeps between rounds on disk."""

    def __init__(self, settings: SiteFolder, data: Path) -> None:
        self.settings, self.path = settings, data
        self._data: tuple[Task, tuple[Tensor, Tensor]] | None = None
        self._bench: _Bench | None = None
        self._given = 0

    def hello(self, content: RecordDict) -> RecordDict:
        """Who is there, and with how many samples of the right kind."""
        meta = meta_of(content, task=str)
        try:
            samples, problem = len(self.data(Task.of(meta["task"]))[1]), ""
        except DataError as error:
            samples, problem = 0, str(error).replace(str(self.path), "the site's data")
        return pack(
            {
                "samples": samples,
                "problem": problem,
                "version": VERSION,
                "allow_shared_data": self.settings.allow_shared_data,
            }
        )

    def share(self, content: RecordDict) -> RecordDict:
        """Take data from the server, if this site's operator allows it."""
        meta = meta_of(content, run=str, task=str, labels=list)
        if not self.settings.allow_shared_data:
            raise RefusedError("this site does not take shared data (site.toml: allow_shared_data = false)")
        if not all(type(label) is int for label in meta["labels"]):
            raise RefusedError("shared data: labels must be whole numbers")
        task, labels = Task.of(meta["task"]), torch.tensor(meta["labels"], dtype=torch.int64)
        size = len(labels) * int(np.prod(task.shape))
        x = vector_of(content, size, torch.float32).view(len(labels), *task.shape)
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < task.classes:
            raise RefusedError(f"shared data: labels must lie between 0 and {task.classes - 1}")
        write_atomic(self._store(meta["run"]).folder / "shared.safetensors", save({"x": x, "y": labels}))
        self._bench = None
        return pack({"samples": len(labels)})

    def train(self, content: RecordDict) -> RecordDict:
        """A client's round on this site's data; what it keeps is staged, not yet valid."""
        meta = meta_of(
            content,
            run=str,
            round=int,
            lr=float,
            client=int,
            clients=int,
            accepted=int,
            safe=int,
            shared=int,
            settings=str,
            task=str,
        )
        if not SMALLEST <= meta["lr"] < _RATE:
            raise RefusedError(f"a rate of {meta['lr']:g}: one between {SMALLEST:g} and {_RATE:g} is needed")
        if meta["round"] < 1 or min(meta["accepted"], meta["safe"], meta["shared"]) < 0:
            raise RefusedError(f"round {meta['round']} after round {meta['accepted']} does not exist")
        self._count(meta["round"])
        bench = self._bench_of(meta)
        vector = vector_of(content, bench.wire.down.size, bench.wire.down.dtype)
        sent = clone(bench.wire.down.unpack(vector))  # each tensor where torch would let it begin
        store = self._store(meta["run"])
        store.commit(meta["accepted"], meta["safe"])
        kept = store.load(meta["accepted"], bench.wire.kept.like)
        broadcast = Broadcast(meta["round"], meta["lr"], **sent)
        out = bench.worker.client(broadcast, ClientTask(meta["client"], kept))
        store.stage(meta["round"], out.kept)
        self._give()
        answer = torch.empty(bench.wire.up.size, dtype=bench.wire.up.dtype)
        bench.wire.up.pack(out.tree(), answer)
        return pack(
            {
                "run": meta["run"],
                "round": meta["round"],
                "client": meta["client"],
                "loss": float(out.loss),
                "visits": out.visits,
                "steps": out.steps,
            },
            answer,
        )

    def commit(self, content: RecordDict) -> RecordDict:
        """The end of a run: which round counts for good."""
        meta = meta_of(content, run=str, accepted=int)
        self._store(meta["run"]).commit(meta["accepted"], meta["accepted"])
        return pack({"accepted": meta["accepted"]})

    def data(self, task: Task) -> tuple[Tensor, Tensor]:
        """The site's data, in the form that the server described."""
        if self._data is None or self._data[0] != task:
            x, y = load_server_file(self.path, task.like())
            if not len(y):
                raise DataError(f"{self.path}: no samples")
            self._data = (task, (x, y))
        return self._data[1]

    def _count(self, round: int) -> None:
        """Refuse a round beyond what the operator allows in all."""
        try:
            given = int(read_object(self.settings.folder / "state" / "given.json")["rounds"])
        except (UnreadableError, LookupError, TypeError, ValueError):
            given = 0
        self._given = given
        if given >= self.settings.most_rounds or round > self.settings.most_rounds:
            raise RefusedError(
                f"this site's operator allows {self.settings.most_rounds} rounds (site.toml: most_rounds)"
            )

    def _give(self) -> None:
        """One more update leaves this site."""
        write_json(self.settings.folder / "state" / "given.json", {"rounds": self._given + 1})

    def _refuse(self, config: Config, samples: int) -> None:
        """Refuse work that this site's operator does not allow."""
        policy, plan = self.settings, plan_of(config)
        if (steps := plan.steps(samples)) > policy.most_steps:
            raise RefusedError(f"{steps} steps a round; this site makes {policy.most_steps} (site.toml: most_steps)")
        batch = min(plan.batch_size or samples, samples)
        if batch < policy.least_batch:
            raise RefusedError(f"batches of {batch}; this site's have {policy.least_batch} (site.toml: least_batch)")
        for part in parts_of(config.algorithm["name"]):
            if policy.algorithms and part not in policy.algorithms:
                raise RefusedError(f"algorithm {part!r}; this site takes part in {', '.join(policy.algorithms)}")

    def _store(self, run: str) -> SiteStore:
        return SiteStore(self.settings.folder / "state", run)

    def _bench_of(self, meta: Mapping[str, Any]) -> _Bench:
        key = tuple(meta[name] for name in ("run", "client", "clients", "shared", "settings", "task"))
        if self._bench is None or self._bench.key != key:
            work = self._work(meta)
            worker = Worker(work)
            self._bench = _Bench(key, worker, worker.messages(aligned=False))
        return self._bench

    def _work(self, meta: Mapping[str, Any]) -> Work:
        """The run's work with this site as client ``client`` of ``clients``; the others' data are not here."""
        task, config = Task.of(meta["task"]), self._config(meta["settings"])
        if not 0 <= meta["client"] < meta["clients"] <= _CLIENTS:
            raise RefusedError(f"client {meta['client']} of {meta['clients']} does not exist")
        self._refuse(config, len(self.data(task)[1]))
        x, y = self._with_shared(task, meta)
        sizes = np.zeros(meta["clients"] + 1, dtype=np.int64)
        sizes[meta["client"] + 1] = len(y)
        federation = Federation(InMemory(x, y), np.arange(len(y), dtype=np.int64), np.cumsum(sizes))
        module = fresh_model(config, task)
        plan, loss = plan_of(config), loss_of(config)
        return bound(module, config.rule(), federation, plan, loss, device_of(config), task=config.task.name)

    def _config(self, text: str) -> Config:
        """The server's settings; what they name must lie in modules that the operator allows, in the site's folder."""
        try:
            given = json.loads(text)
            if unknown := sorted(given.keys() - SENT):
                raise ConfigError(f"unknown key {unknown[0]!r}")
            self._refuse_modules(given)
            return parse(given)
        except (ValueError, RecursionError, TypeError, AttributeError, ConfigError) as error:
            raise RefusedError(f"the server's settings are not understood here: {error}") from None

    def _refuse_modules(self, given: Any) -> None:
        for place in places_in(given):
            module = place.partition(":")[0]
            if module not in self.settings.modules:
                raise RefusedError(
                    f"{place!r} is code of the server's choice; this site's operator allows "
                    f"{', '.join(self.settings.modules) or 'none'} (site.toml: modules)"
                )
            look_in(self.settings.folder)

    def _with_shared(self, task: Task, meta: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        x, y = self.data(task)
        if not meta["shared"]:
            return x, y
        try:
            extra = load_file(self._store(meta["run"]).folder / "shared.safetensors")
        except OSError:
            raise RunError("the server's shared data have not arrived at this site") from None
        if len(extra["y"]) != meta["shared"]:
            raise RefusedError(f"{len(extra['y'])} shared samples are here, the server means {meta['shared']}")
        return torch.cat([x, extra["x"]]), torch.cat([y, extra["y"]])
