"""Mutated messages: what a rogue site answers, and what a rogue server sends; no network, no processes.

A finding is an error that is none of ours, a reason that is long or would act on a terminal, a site's update that is
accepted although the server cannot compute with it, or a run that does not come to its end.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from worlds import SITES, Nearby, federated, parts, write_data

from undrift.errors import UndriftError
from undrift.federation.engine import Answer, Flower
from undrift.federation.run import _samples, over
from undrift.federation.setup import init
from undrift.rounds.loop import Result, Run
from undrift.rounds.messages import Broadcast, ClientTask, Lost, Outcome
from undrift.rounds.work import Work

ALGORITHM, ROGUE = "scaffold+topk+quantise", "south"
INTEGERS = [0, 1, -1, 2, 7, 2**31, 2**53, 10**15, 2**63 - 1, -(2**63)]
FLOATS = [0.0, -1.0, 1e-320, 1e30, 1e38, 1e308, float("nan"), float("inf"), float("-inf")]
TEXTS = [
    "",
    "x",
    "\x1b]0;gotcha\x07",
    "\x1b[2J",
    "a\nb",
    "\0",
    "[/bold]",
    "é" * 300,
    "x" * 3000,
    "0" * 32,
    "{}",
    "[" * 5000,
]
VALUES: list[Any] = [*INTEGERS, *FLOATS, *TEXTS, True, False, b"", b"\xff" * 9, [], [1, 2], [0.5], ["x"], [True]]
TYPES = ["float32", "float64", "uint8", "int64", "bool", "object", "float16", "", "\x1b[31m", "O" * 500]
SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (-1,), (2**31,), (2**62,), (1, 1), (0, 5), (3, -3), (1,) * 300]


def mutated(draw: random.Random, honest: RecordDict) -> RecordDict:
    """A message that somebody has been at, once or more."""
    meta, array = parts(honest)
    records: dict[str, Any] = {"meta": meta}
    if array is not None:
        records["vector"] = [array.dtype, tuple(array.shape), array.stype, bytearray(array.data)]
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        draw.choice((_value, _value, _field, _record, _bytes, _bytes, _array))(draw, records)
    return _made(draw, records)


def _value(draw: random.Random, records: dict[str, Any]) -> None:
    if isinstance(meta := records.get("meta"), dict) and meta:
        meta[draw.choice(list(meta))] = draw.choice(VALUES)


def _field(draw: random.Random, records: dict[str, Any]) -> None:
    if not isinstance(meta := records.get("meta"), dict):
        return
    if meta and draw.random() < 0.5:
        del meta[draw.choice(list(meta))]
    else:
        meta[draw.choice([*TEXTS, "k" * 100_000])] = draw.choice(VALUES)


def _record(draw: random.Random, records: dict[str, Any]) -> None:
    name = draw.choice(["meta", "vector", "more", *TEXTS])
    if name in records and draw.random() < 0.5:
        del records[name]
    else:
        records[name] = draw.choice([{}, {"a": 1}, {"meta": "x" * 2_000_000}, None, "metrics", "arrays"])


def _bytes(draw: random.Random, records: dict[str, Any]) -> None:
    if not isinstance(array := records.get("vector"), list) or not array[3]:
        return
    data, at = array[3], draw.randrange(len(array[3]))
    kind = draw.choice(["flip", "number", "number", "cut", "more", "fill"])
    if kind == "flip":
        data[at] ^= 1 << draw.randrange(8)
    elif kind == "number":
        number = torch.tensor([draw.choice(FLOATS)], dtype=torch.float32).numpy().tobytes()
        at = min(at - at % 4, len(data) - 4) if len(data) >= 4 else 0
        data[at : at + 4] = number
    elif kind == "cut":
        del data[at:]
    elif kind == "more":
        data += bytes(draw.choice((1, 4, 4096)))
    else:
        data[:] = bytes([draw.choice((0, 1, 127, 128, 255))]) * len(data)


def _array(draw: random.Random, records: dict[str, Any]) -> None:
    if isinstance(array := records.get("vector"), list):
        place = draw.randrange(3)
        array[place] = draw.choice((TYPES, SHAPES, ["numpy.ndarray", "", "\x1b[2J", "undrift.raw "])[place])


def _made(draw: random.Random, records: dict[str, Any]) -> RecordDict:
    """As Flower hands it over."""
    made = RecordDict()
    for name, record in records.items():
        if isinstance(record, list):
            kind, shape, written, data = record
            place = draw.choice(["vector"] * 20 + ["other"])
            made[name] = ArrayRecord({place: Array(kind, shape, written, bytes(data))})
        elif isinstance(record, dict):
            made[name] = ConfigRecord(record)
        else:
            made[name] = MetricRecord({"a": 1.0}) if record == "metrics" else ArrayRecord({})
    return made


@dataclass
class Scene:
    """A round of a small federation, of which every message is at hand."""

    folder: Path
    engine: Flower
    broadcast: Broadcast
    task: ClientTask
    reply: RecordDict
    hello: RecordDict
    sent: dict[str, RecordDict]
    sites: Nearby


class _Listening(Nearby):
    """Remembers what the rogue site is sent and what it answers."""

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self.sent: dict[str, RecordDict] = {}
        self.answers: dict[str, RecordDict] = {}

    def _one(self, what: str, name: str, content: RecordDict) -> Answer:
        answer = super()._one(what, name, content)
        if name == ROGUE and isinstance(answer, RecordDict):
            self.sent[what], self.answers[what] = content, answer
        return answer


def scene(folder: Path) -> Scene:
    """Carry a round out and keep what was said."""
    folder.mkdir()
    write_data(folder)
    init(folder / "fed", list(SITES))
    exchange, made, checked = _Listening(folder / "fed", folder), list[Flower](), list[Any]()

    def body(work: Work, make: Any) -> Result:
        def kept(*rest: Any) -> Flower:
            made.append(make(*rest))
            look = made[0]._checked

            def spy(broadcast: Broadcast, task: ClientTask, name: str, answer: Answer) -> Outcome | Lost:
                checked.extend([(broadcast, task)] if name == ROGUE else [])
                return look(broadcast, task, name, answer)

            made[0]._checked = spy  # type: ignore[method-assign]
            return made[0]

        return Run(work, make_engine=kept).go()

    config = federated(folder, ALGORITHM, 1, folder / "fed" / "server")
    over(config, exchange, SITES, None, False, body)
    broadcast, task = checked[0]
    del made[0].__dict__["_checked"]
    answers = exchange.answers
    return Scene(folder, made[0], broadcast, task, answers["train"], answers["hello"], exchange.sent, exchange)


Found = Callable[[str], None]


def replies(draw: random.Random, at: Scene, found: Found) -> None:
    """A mutated answer to a round: lost for a reason in one line, or numbers that the server can compute with."""
    answer: Answer = mutated(draw, at.reply) if draw.random() < 0.98 else draw.choice(TEXTS)
    out = at.engine._checked(at.broadcast, at.task, ROGUE, answer)
    if isinstance(out, Lost):
        if not out.reason.isprintable() or len(out.reason) > 700:
            found(f"a reason of {len(out.reason)} letters: {out.reason[:200]!r}")
        return
    samples = at.engine.federation.size(at.task.client)
    bounded = 1 <= out.visits <= at.engine.plan.visits(samples) and 1 <= out.steps <= at.engine.plan.steps(samples)
    if not bounded or not math.isfinite(float(out.loss)) or not math.isfinite(at.engine._lengths[out.client]):
        found(f"accepted: {out.visits} visits, {out.steps} steps, loss {out.loss}")


def hellos(draw: random.Random, at: Scene, found: Found) -> None:
    """A mutated hello: so many samples, or one line."""
    config = federated(at.folder, ALGORITHM, 1, at.folder / "fed" / "server")
    try:
        samples = _samples(ROGUE, mutated(draw, at.hello), config)
    except UndriftError as error:
        if len(str(error)) > 700 or not str(error).isprintable():
            found(f"a reason of {len(str(error))} letters: {str(error)[:200]!r}")
    else:
        if not 1 <= samples <= config.engine.most_samples:
            found(f"{samples} samples were believed")


def orders(draw: random.Random, at: Scene, found: Found) -> None:
    """A mutated message of the server: the site answers, or refuses in words."""
    what = draw.choice(list(at.sent))
    try:
        getattr(at.sites.sites[ROGUE], what)(mutated(draw, at.sent[what]))
    except UndriftError as error:
        if not str(error):
            found(f"{what}: refused without a reason")


def runs(draw: random.Random, at: Scene, found: Found) -> None:
    """A run of two rounds in which a site answers anything: it ends, with numbers that are some."""
    exchange = Nearby(at.folder / "fed", at.folder)
    exchange.tamper = lambda name, round, reply: mutated(draw, reply) if name == ROGUE else reply
    config = federated(at.folder, draw.choice(["fedavg", "scaffold", ALGORITHM]), 2, at.folder / "fed" / "server")

    def body(work: Work, make: Any) -> Result:
        return Run(work, make_engine=make).go()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = over(config, exchange, SITES, None, False, body)
    if result.server is None or not torch.isfinite(result.server.x).all():
        found("a run of numbers that are none")


KINDS = {"replies": replies, "hellos": hellos, "orders": orders, "runs": runs}
SHARES = (50, 25, 24, 1)
