"""The loop over rounds: training, evaluation, records, checkpoints."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from undrift.core.files import finite
from undrift.core.machine import versions
from undrift.core.numerics import settled
from undrift.core.plugins import load
from undrift.core.signals import interruptible
from undrift.core.streams import stream
from undrift.core.tree import Tree, unflatten
from undrift.errors import DivergedError
from undrift.rounds.client_states import ClientStates, refuse_other_shapes
from undrift.rounds.engine import Engine, MakeEngine, Pending
from undrift.rounds.evaluation import CLIENTS, SERVER_MODEL, record_of
from undrift.rounds.full import FullRounds, Observer, draw_at
from undrift.rounds.made_from import made_from
from undrift.rounds.personal import own_record
from undrift.rounds.plan import batches
from undrift.rounds.progress import Monitor, Patience, Record, summarise
from undrift.rounds.server_step import Report, Server
from undrift.rounds.split.rounds import SplitRounds
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker
from undrift.rules.rule import RoundKind

Progress = Callable[[int, int, Record | None], None]
"""Told (rounds done, rounds in all, the newest evaluation) after every round, and when an evaluation is finished."""
Callback = Callable[[Record], object]
"""Given every finished evaluation record exactly once, in order; one that returns True ends the run there."""
CHECKPOINT_SECONDS = 10.0
KINDS: dict[RoundKind, type[FullRounds] | type[SplitRounds]] = {
    RoundKind.FULL: FullRounds,
    RoundKind.SPLIT: SplitRounds,
}


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


class Output(Protocol):
    """Where a run writes (a folder)."""

    path: Path
    states: Path
    """For what clients keep."""

    def begin(self, made_from: Mapping[str, str]) -> None:
        """Make the place ours and say whose output this is, before anything else is written."""
        ...

    def leave(self, kind: type[BaseException] | None, error: BaseException | None, *rest: object) -> None:
        """Let others write there; what a refused run has written goes."""
        ...

    def append(self, name: str, record: Record) -> None:
        """Add a record to a JSON-lines file."""
        ...

    def records(self, name: str, last: int, keep: Callable[[int], bool]) -> list[Record]:
        """The records up to round ``last`` of rounds that are to be kept; what comes after is dropped."""
        ...

    def save(self, round: int, tensors: Tree, extra: Record, files: Mapping[str, str]) -> None:
        """Write a checkpoint; ``files``: the clients' files that belong to it, with their checksums."""
        ...

    def load(self) -> tuple[Record, dict[str, Tensor]] | None:
        """The last checkpoint, if there is one."""
        ...

    def finish(self, summary: Record) -> None:
        """Write the summary, which marks the run as finished."""
        ...


@dataclass(repr=False)
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

    def __repr__(self) -> str:
        """In a line: how many rounds, what was reached, what was sent."""
        metric = Monitor.of(self.summary["monitor"]).metric
        final = self.summary.get(f"final_{metric}")
        reached = "nothing evaluated" if final is None else f"{metric} {final:.4f}"
        sent = (self.summary["bytes_down"] + self.summary["bytes_up"]) / 1e6
        return f"Result({self.summary['rounds']} rounds, {reached}, {sent:.1f} MB sent)"

    def to_frame(self) -> Any:
        """The history as a pandas data frame, one row for each evaluated round."""
        pandas = load("pandas:DataFrame", "to_frame", "frame")
        return pandas(self.history).set_index("round")

    def plot(self) -> Any:
        """A Matplotlib figure of the monitored metric and of the loss over the rounds."""
        return load("undrift.report.history:plot_history", "plot", "report")(self.history, self.summary["monitor"])


@dataclass
class Run:
    """One run, ready to go."""

    work: Work
    make_engine: MakeEngine
    workers: int | None = None
    measures: tuple[Measure, ...] = ()
    folder: Output | None = None
    progress: Progress | None = None
    callbacks: tuple[Callback, ...] = ()
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    state_budget: int = 2 << 30

    def go(self) -> Result:
        """Run to the end (from the last checkpoint, if the folder has one)."""
        with settled(), contextlib.ExitStack() as stack:
            worker = Worker(self.work)
            engine = self.make_engine(self.work, worker, self.workers)
            stack.callback(engine.close)
            if self.folder:
                stack.push(self.folder.leave)
                self.folder.begin(made_from(self.work))
            return Loop(self, worker, engine).go()


class Loop:
    """A run under way: what the server has, what has been recorded."""

    def __init__(self, run: Run, worker: Worker, engine: Engine) -> None:
        self.run, self.work, self.plan = run, run.work, run.work.plan
        self.worker, self.engine, self.folder = worker, engine, run.folder
        self.history: list[Record] = []
        self.lines: list[Record] = []
        self.bytes = {"bytes_down": 0, "bytes_up": 0}
        self.seconds = 0.0
        self.done = 0
        self.stopped = False
        monitor, validated = self.work.monitor, "validation" in self.work.evaluated()
        watched = f"{'validation' if validated else 'test'}_{monitor.metric}"
        self.patience = Patience(self.plan.patience, monitor, watched)
        self.pending: tuple[Record, Pending] | None = None
        x, rule = worker.model.weights.clone(), self.work.rule
        seen = x[: len(worker.weights)]
        self.server = Server(x, worker.model.buffers.clone(), rule.init_server(seen))
        self.limited, self.reports = bool(rule.acting("ends")), bool(rule.acting("report"))
        folder = self.folder.states if self.folder else None
        self.states = ClientStates(rule.init_client(seen), folder, run.state_budget, x.device)
        for measure in run.measures:
            measure.begin(worker)
        observers: tuple[Observer, ...] = tuple(measure.observe for measure in run.measures)
        self.rounds = KINDS[self.work.rule.kind](self.work, engine, self.states, worker, observers)

    def go(self) -> Result:
        """All rounds that are left."""
        if not self._resume():
            self._pretrain()
            self._evaluate(
                {"round": 0, "train_loss": None, "bytes_down": 0, "bytes_up": 0, "seconds": 0.0}, self.server
            )
        saved = time.monotonic()
        with interruptible() as interrupted:
            for round in range(self.done + 1, self.plan.rounds + 1):
                if self.stopped or self._over(round):
                    break
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
        self._record_round(report, seconds)
        self._collect()
        self.done = round
        due = round % self.plan.eval_every == 0 or round == self.plan.rounds or self._over(round + 1)
        if due:
            record = {
                "round": round,
                "train_loss": report.train_loss,
                "bytes_down": report.bytes_down,
                "bytes_up": report.bytes_up,
                "seconds": seconds,
            }
            if self.reports:
                record |= self.work.rule.report(round, draw_at(self.work, round))
            self._evaluate(record, self.server)
        if not due or (self.pending is not None and round < self.plan.rounds):
            self._tell()  # else the evaluation of this round tells of it, now or when it is finished

    def _over(self, round: int) -> bool:
        """Whether a rule ends the run before this round."""
        return self.limited and self.work.rule.ends(round, draw_at(self.work, round))

    def _due(self, round: int) -> bool:
        """Whether a round is evaluated."""
        return round % self.plan.eval_every == 0 or round == self.plan.rounds

    def _record_round(self, report: Report, seconds: float) -> None:
        lost = [{"client": item.client, "reason": item.reason} for item in report.lost]
        line = {"round": report.round, "clients": report.clients, "lost": lost, "lr": report.lr, "seconds": seconds}
        self.lines.append(line)
        if self.folder:
            self.folder.append("rounds.jsonl", line)

    def _tell(self) -> None:
        if self.run.progress:
            self.run.progress(self.done, self.plan.rounds, self.history[-1] if self.history else None)

    def _evaluate(self, record: Record, server: Server) -> None:
        for measure in self.run.measures:
            record |= measure.report(record["round"], server)
        if self.work.personal:
            record |= own_record(self.worker, self.states, server)
        self.pending = (record, self.engine.evaluate(server.x, server.buffers))
        if self.engine.eager or self.run.callbacks or self.plan.patience:
            self._collect()  # who may end the run here must see the evaluation before the next round

    def _collect(self) -> None:
        """Wait for the evaluation under way, write its record, and tell of it."""
        if self.pending is None:
            return
        record, pending = self.pending
        self.pending = None
        clients = SERVER_MODEL if self.work.personal else CLIENTS
        record = finite({"round": record["round"], **record_of(self.work, pending(), clients), **record})
        self.history.append(record)
        self.patience.sees(record)
        if self.folder:
            self.folder.append("metrics.jsonl", record)
        self._tell()
        asked = [callback(record) for callback in self.run.callbacks]
        self.stopped = any(answer is True for answer in asked) or self.patience.over

    def _pretrain(self) -> None:
        data, plan = self.work.federation.server, self.plan
        if not plan.pretrain_epochs or data is None:
            return
        order = batches(len(data), plan.batch_size, plan.pretrain_epochs, None, stream(plan.seed, "pretrain"))
        x = self.worker.learn(self.server.x, self.server.buffers, data, plan.pretrain_lr, order, 0)
        self.server = replace(self.server, x=x, buffers=self.worker.model.buffers.clone())

    def _checkpoint(self, round: int) -> None:
        self._collect()
        if self.folder is None:
            return
        files = {str(client): name for client, name in self.states.flush().items()}
        extra = {"clients": files, "bytes": self.bytes, "seconds": self.seconds}
        self.folder.save(round, self.server.tree(), extra, self.states.checksums)

    def _resume(self) -> bool:
        """Go back to the last checkpoint; returns whether there is one."""
        if self.folder is None:
            return False
        found = self.folder.load()
        last = -1 if found is None else int(found[0]["round"])
        self.history = self.folder.records("metrics.jsonl", last, self._due)
        self.lines = self.folder.records("rounds.jsonl", last, lambda round: True)
        if found is None:
            self.states.restore({}, {})
            return False
        state, flat = found
        device = self.server.x.device
        refuse_other_shapes(flat, self.server.tree(), "checkpoint")
        tree = unflatten({path: tensor.to(device, copy=True) for path, tensor in flat.items()}, self.server.tree())
        self.server = Server(tree["x"], tree["buffers"], tree["state"])
        self.states.restore({int(client): name for client, name in state["clients"].items()}, state["files"])
        self.bytes, self.seconds, self.done = state["bytes"], state["seconds"], last
        for line in self.lines:
            self.rounds.skip(line["clients"])
        for record in self.history:
            self.patience.sees(record)
        self.stopped = self.patience.over
        return True

    def _finish(self) -> Result:
        self._collect()
        self.worker.model.load(self.server.x, self.server.buffers)
        summary = summarise(self.history, self.plan.targets, self.work.monitor)
        summary |= {"rounds": self.done, **self.bytes, "seconds": self.seconds, "versions": versions()}
        summary["precision"] = self.plan.precision
        summary |= self.work.rule.facts()
        self._checkpoint(self.done)
        summary = finite(summary)
        if self.folder:
            self.worker.model.save(self.folder.path / "model.safetensors")
            self.folder.finish(summary)
        return Result(
            self.history,
            self.lines,
            summary,
            self.worker.model.ordinary(self.work.module),
            self.folder.path if self.folder else None,
            self.server,
            self.worker.clock.seconds,
        )
