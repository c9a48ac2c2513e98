"""The loop over rounds: training, evaluation, records, checkpoints; and the Python entry point ``simulate``."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from undrift.data.dataset import channels_last
from undrift.engines.auto import engine_for
from undrift.engines.base import Engine, Pending
from undrift.errors import ConfigError, DivergedError
from undrift.federation import Federation, Pair, from_clients
from undrift.folder import Folder
from undrift.machine import commit, processor
from undrift.measure.progress import summarise
from undrift.numerics import settled
from undrift.plan import Plan, batches
from undrift.round import FullRounds, Observer, Report, Server
from undrift.rule import KIND, Chain, FedAvg, Rule, chain, owner_of
from undrift.schedule import Kind, Schedule
from undrift.store import Store
from undrift.streams import stream
from undrift.tree import grow
from undrift.worker import Loss, Work, Worker

Record = dict[str, Any]
Progress = Callable[[int, int, Record | None], None]
"""Told (round, rounds, the newest evaluation if there is one) after every round."""
CHECKPOINT_SECONDS = 10.0


class Measure(Protocol):
    """Something measured in evaluated rounds; may watch clients' updates, must not change anything."""

    def begin(self, worker: Worker) -> None:
        """Take what the run computes with, before round 1 (or before the first round after a resume)."""
        ...

    def observe(self, round: int, outcome: Any, weight: float, x: Tensor) -> None:
        """See a client's accepted update."""
        ...

    def report(self, round: int, server: Server) -> Record:
        """What to add to the round's record (called for every round, empty where not due)."""
        ...


class Rounds(Protocol):
    """A kind of round: full models, or split ones."""

    def run(self, round: int, server: Server) -> tuple[Server, Report]:
        """One round."""
        ...

    def skip(self, round: int) -> None:
        """Note that an earlier part of the run made this round."""
        ...


@dataclass
class Result:
    """What a run gave."""

    history: list[Record]
    rounds: list[Record]
    summary: Record
    model: nn.Module
    folder: Path | None = None
    server: Server | None = field(default=None, repr=False)
    profile: dict[str, float] = field(default_factory=dict)
    """Seconds by kind of work, where the run was profiled."""


@dataclass
class Run:
    """One run, ready to go."""

    work: Work
    workers: int | None = None
    measures: tuple[Measure, ...] = ()
    folder: Folder | None = None
    progress: Progress | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    state_budget: int = 2 << 30
    make_engine: Callable[[Work, Worker, int | None], Engine] = engine_for

    def go(self) -> Result:
        """Run to the end (from the last checkpoint, if the folder has one)."""
        with settled(), contextlib.ExitStack() as stack:
            worker = Worker(self.work)
            engine = self.make_engine(self.work, worker, self.workers)
            stack.callback(engine.close)
            if self.folder:
                self.folder.begin()
            return _Loop(self, worker, engine).go()


class _Loop:
    def __init__(self, run: Run, worker: Worker, engine: Engine) -> None:
        self.run, self.work, self.plan = run, run.work, run.work.plan
        self.worker, self.engine, self.folder = worker, engine, run.folder
        self.history: list[Record] = []
        self.lines: list[Record] = []
        self.bytes = {"bytes_down": 0, "bytes_up": 0}
        self.seconds = 0.0
        self.pending: tuple[Record, Pending] | None = None
        x = worker.model.weights.clone()
        self.server = Server(x, worker.model.buffers.clone(), self.work.rule.init_server(x))
        states = self.folder.checkpoints / "clients" if self.folder else None
        self.store = Store(self.work.rule.init_client(x), states, run.state_budget)
        for measure in run.measures:
            measure.begin(worker)
        observers: tuple[Observer, ...] = tuple(measure.observe for measure in run.measures)
        kind = owner_of(self.work.rule, KIND)
        make = FullRounds if kind is None else kind.rounds
        self.rounds: Rounds = make(self.work, engine, self.store, worker, observers)

    def go(self) -> Result:
        done = self._resume()
        saved = time.monotonic()
        if done is None:
            self._pretrain()
            self._evaluate(
                {"round": 0, "train_loss": None, "bytes_down": 0, "bytes_up": 0, "seconds": 0.0}, self.server
            )
        with interruptible() as interrupted:
            for round in range((done or 0) + 1, self.plan.rounds + 1):
                try:
                    self._round(round)
                except DivergedError:
                    self._checkpoint(round - 1)
                    raise
                if interrupted() or time.monotonic() - saved > self.run.checkpoint_seconds:
                    self._checkpoint(round)
                    saved = time.monotonic()
                if interrupted():
                    raise KeyboardInterrupt
        return self._finish()

    def _round(self, round: int) -> None:
        start = time.perf_counter()
        self.server, report = self.rounds.run(round, self.server)
        seconds = time.perf_counter() - start
        self.seconds += seconds
        self.bytes["bytes_down"] += report.bytes_down
        self.bytes["bytes_up"] += report.bytes_up
        lost = [{"client": item.client, "reason": item.reason} for item in report.lost]
        line = {"round": round, "clients": report.clients, "lost": lost, "lr": report.lr, "seconds": seconds}
        self.lines.append(line)
        if self.folder:
            self.folder.append("rounds.jsonl", line)
        self._collect()
        if round % self.plan.eval_every == 0 or round == self.plan.rounds:
            record = {
                "round": round, "train_loss": report.train_loss, "bytes_down": report.bytes_down,
                "bytes_up": report.bytes_up, "seconds": seconds,
            }  # fmt: skip
            self._evaluate(record, self.server)
        if self.run.progress:
            self.run.progress(round, self.plan.rounds, self.history[-1] if self.history else None)

    def _evaluate(self, record: Record, server: Server) -> None:
        for measure in self.run.measures:
            record |= measure.report(record["round"], server)
        self.pending = (record, self.engine.evaluate(server.x, server.buffers))

    def _collect(self) -> None:
        """Wait for the evaluation under way and write its record."""
        if self.pending is None:
            return
        record, pending = self.pending
        self.pending = None
        scores: Record = {}
        for name, score in pending().items():
            scores[f"{name}_accuracy"] = score.correct / score.samples if score.counted else None
            scores[f"{name}_loss"] = score.loss / score.samples
        record = {"round": record["round"], **scores, **record}
        self.history.append(record)
        if self.folder:
            self.folder.append("metrics.jsonl", record)

    def _pretrain(self) -> None:
        data, plan = self.work.federation.server, self.plan
        if not plan.pretrain_epochs or data is None:
            return
        order = batches(len(data[1]), plan.batch_size, plan.pretrain_epochs, None, stream(plan.seed, "pretrain"))
        x = self.worker.learn(self.server.x, self.server.buffers, data, plan.pretrain_lr, order, 0)
        self.server = replace(self.server, x=x, buffers=self.worker.model.buffers.clone())

    def _checkpoint(self, round: int) -> None:
        self._collect()
        if self.folder is None:
            return
        files = {str(client): name for client, name in self.store.flush().items()}
        server = {"x": self.server.x, "buffers": self.server.buffers, "state": self.server.state}
        self.folder.save(round, server, {"clients": files, "bytes": self.bytes, "seconds": self.seconds})
        self.store.tidy()

    def _resume(self) -> int | None:
        """Go back to the last checkpoint; returns the last round that is done (0: pre-training), None if none is."""
        if self.folder is None:
            return None
        found = self.folder.load()
        last = -1 if found is None else found[0]["round"]
        self.history = self.folder.records("metrics.jsonl", last)
        self.lines = self.folder.records("rounds.jsonl", last)
        if found is None:
            self.store.restore({})
            return None
        state, flat = found
        device = self.server.x.device
        like = {"x": self.server.x, "buffers": self.server.buffers, "state": self.server.state}
        tree = grow({path: tensor.to(device) for path, tensor in flat.items()}, like)
        self.server = Server(tree["x"], tree["buffers"], tree["state"])
        self.store.restore({int(client): name for client, name in state["clients"].items()})
        self.bytes, self.seconds = state["bytes"], state["seconds"]
        for round in range(1, last + 1):
            self.rounds.skip(round)
        return int(last)

    def _finish(self) -> Result:
        self._collect()
        self.worker.model.load(self.server.x, self.server.buffers)
        summary = summarise(self.history, self.plan.targets)
        summary |= {**self.bytes, "seconds": self.seconds, "versions": versions()}
        self._checkpoint(self.plan.rounds)
        if self.folder:
            self.worker.model.save(self.folder.path / "model.safetensors")
            self.folder.finish(summary)
        self.worker.model.module.eval()
        return Result(
            self.history, self.lines, summary, self.worker.model.module,
            self.folder.path if self.folder else None, self.server, self.worker.clock.seconds,
        )  # fmt: skip


@contextlib.contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Ctrl-C lets the round under way finish, so that it can be saved; a second one stops at once."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if ignored or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked: list[bool] = []

    def ask(signum: int, frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    from undrift import __version__

    own = {"undrift": __version__ + commit(), "torch": torch.__version__, "numpy": np.__version__}
    return own | {"python": platform.python_version(), "processor": processor()}


def prepare(module: nn.Module, rule: Rule, federation: Federation, plan: Plan, loss: Loss, device: str) -> Work:
    """Check that the parts fit together, and bind them."""
    whole = rule if isinstance(rule, Chain) else chain(rule)
    for link in whole.links:
        if link.needs_server_data and federation.server is None:
            raise ConfigError(f"algorithm {link.name!r} needs server data: give [server_data] (Python: server_data=)")
    owner = owner_of(whole, "the server step")
    if owner is not None and plan.server_lr != 1.0:
        raise ConfigError(
            f"train.server_lr = {plan.server_lr!r}: {owner.name!r} owns the server step, only 1 is allowed"
        )
    if plan.pretrain_epochs and federation.server is None:
        raise ConfigError("train.pretrain_epochs: pre-training needs server data")
    if plan.cohort is not None and plan.cohort > len(federation):
        raise ConfigError(f"train.cohort = {plan.cohort}: there are only {len(federation)} clients")
    layout = Worker(Work(module, whole, federation, plan, loss, device)).model.layout
    kind = owner_of(whole, KIND)
    bound = whole.bind(layout) if kind is None else kind.arrange(whole, module, layout, plan)
    return Work(module, bound, whole.federate(federation, plan.seed), plan, loss, device)


def simulate(
    model: nn.Module,
    clients: Sequence[Pair | Dataset[Pair]] | Federation,
    algorithm: Rule | None = None,
    *,
    server_data: Pair | None = None,
    test_data: Pair | None = None,
    rounds: int = 10,
    cohort: int | None = None,
    local_epochs: int = 1,
    local_steps: int | None = None,
    batch_size: int = 32,
    lr: float = 0.01,
    server_lr: float | Literal["sqrt"] = 1.0,
    weight_decay: float = 0.0,
    schedule: Kind = "constant",
    lr_min: float | None = None,
    milestones: Sequence[int] = (),
    decay: float = 0.1,
    weighting: Literal["samples", "uniform"] = "samples",
    pretrain_epochs: int = 0,
    pretrain_lr: float = 0.01,
    eval_every: int = 1,
    loss: Loss = nn.functional.cross_entropy,
    seed: int = 0,
    workers: int | None = None,
    precision: Literal["fp32", "bf16"] = "fp32",
    device: str = "cpu",
    measures: Sequence[Measure] = (),
    progress: Progress | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> Result:
    """Train ``model`` over ``clients`` under ``algorithm`` (default: FedAvg) and return what came of it.

    ``clients`` is one (x, y) tensor pair or torch data set for each client. The given module is not changed;
    the trained one is ``result.model``. ``workers``: processes (0: this one, None: as many as pay off).
    ``out``: a folder for records, checkpoints and the final model; ``resume`` goes on with the run in it.
    """
    federation = clients if isinstance(clients, Federation) else from_clients(clients)
    federation = replace(
        federation,
        server=_laid_out(server_data) or federation.server,
        test=_laid_out(test_data) or federation.test,
    )
    plan = Plan(
        rounds=rounds, lr=Schedule(lr, schedule, lr_min, tuple(milestones), decay), cohort=cohort,
        local_epochs=local_epochs, local_steps=local_steps, batch_size=batch_size, server_lr=server_lr,
        weight_decay=weight_decay, weighting=weighting, eval_every=eval_every, pretrain_epochs=pretrain_epochs,
        pretrain_lr=pretrain_lr, seed=seed, precision=precision,
    )  # fmt: skip
    rule = algorithm or FedAvg()
    work = prepare(model, rule, federation, plan, loss, device)
    folder = Folder(Path(out), _described(work, rule), resume=resume) if out is not None else None
    return Run(work, workers, tuple(measures), folder, progress).go()


def _laid_out(pair: Pair | None) -> Pair | None:
    return None if pair is None else (channels_last(torch.as_tensor(pair[0])), torch.as_tensor(pair[1]))


def _described(work: Work, rule: Rule) -> dict[str, Any]:
    """What a run from Python is recognised by when it is resumed."""
    federation, digest = work.federation, hashlib.sha256()
    for tensor in (*work.module.state_dict().values(), federation.y, federation.x.sum(dtype=torch.float64)):
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    digest.update(federation.indices.tobytes() + federation.offsets.tobytes())
    return {"api": "simulate", "algorithm": repr(rule), "plan": repr(work.plan), "start": digest.hexdigest()}
