"""Worker processes: short clients are handed out together, in the cohort's order, with the same bits as one by one."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from undrift.core.numerics import settled
from undrift.core.tree import clone, flatten
from undrift.data.federation import from_clients
from undrift.engines import local_worker
from undrift.engines.local import Local, shares
from undrift.engines.serial import Serial
from undrift.rounds.messages import Broadcast, ClientTask
from undrift.rounds.plan import Plan
from undrift.rounds.prepare import prepare
from undrift.rounds.work import Work
from undrift.rounds.worker import Worker

CLIENTS, WORKERS = 11, 2


@pytest.mark.parametrize("seed", range(20))
def test_shares_are_neighbours_none_too_large(seed: int) -> None:
    draw = random.Random(seed)
    steps = [draw.randint(1, 40) for _ in range(draw.randint(1, 60))]
    workers, most = draw.randint(1, 8), draw.randint(1, 20)
    found = shares(steps, workers, most)
    assert [position for part in found for position in range(part.start, part.stop)] == list(range(len(steps)))
    assert all(1 <= part.stop - part.start <= most for part in found)
    assert max(sum(steps[part]) for part in found) <= sum(steps) / workers + max(steps)


@pytest.mark.parametrize(
    ("clients", "workers", "most", "sizes"),
    [(10, 2, 99, [4, 4, 1, 1]), (20, 2, 99, [8, 8, 2, 2]), (20, 2, 5, [5, 5, 4, 4, 1, 1]), (1, 2, 9, [1])],
)
def test_shares_of_like_clients(clients: int, workers: int, most: int, sizes: list[int]) -> None:
    assert [part.stop - part.start for part in shares([5] * clients, workers, most)] == sizes


def test_a_long_client_stands_alone() -> None:
    assert shares([100, 1, 1, 1], 2, 10)[0] == slice(0, 1)


def work_of(rule: Any) -> Work:
    draw = torch.Generator().manual_seed(0)
    sizes = [12 + 3 * client for client in range(CLIENTS)]
    data = [(torch.randn(n, 4, generator=draw), torch.randint(0, 3, (n,), generator=draw)) for n in sizes]
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 3))
    return prepare(module, rule, from_clients(data), Plan(rounds=9, batch_size=6, lr=0.1))


class Rounds:
    """Rounds on an engine without a server: every client starts from the same model."""

    def __init__(self, work: Work, worker: Worker, engine: Any) -> None:
        self.engine = engine
        self.x, self.buffers = worker.weights.clone(), worker.buffers.clone()
        self.down = work.rule.down(work.rule.init_server(self.x), 1)
        self.kept = dict.fromkeys(range(CLIENTS), work.rule.init_client(self.x))
        self.taking_part = slice(None)

    def outcomes(self, round: int) -> Iterator[Any]:
        broadcast = Broadcast(round, 0.1, self.x, self.buffers, self.down)
        for out in self.engine.clients(
            broadcast, [ClientTask(*item) for item in list(self.kept.items())[self.taking_part]]
        ):
            self.kept[out.client] = clone(out.kept)  # it is valid until the next outcome is taken
            yield out

    def make(self, round: int) -> list[Any]:
        return [(out.client, out.delta.clone(), out.loss, out.steps) for out in self.outcomes(round)]

    def states(self) -> list[Tensor]:
        return [tensor for kept in self.kept.values() for tensor in flatten(kept).values()]


@contextmanager
def local(work: Work) -> Iterator[tuple[Local, Rounds]]:
    with settled():
        worker = Worker(work)
        engine = Local(work, worker, WORKERS)
        try:
            yield engine, Rounds(work, worker, engine)
        finally:
            engine.close()


def serial(work: Work) -> Rounds:
    worker = Worker(work)
    return Rounds(work, worker, Serial(work, worker))


def same(found: list[Any], expected: list[Any]) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(a[0] == b[0] and torch.equal(a[1], b[1]) and a[2:] == b[2:] for a, b in pairs)


@pytest.mark.parametrize("rule", [ud.fedavg(), ud.scaffold()], ids=["fedavg", "scaffold"])
def test_short_clients_are_handed_out_together_with_the_same_bits(rule: Any) -> None:
    work = work_of(rule)
    with local(work) as (engine, rounds):
        one_by_one = serial(work)
        given = []
        for round in (1, 2, 3):
            before, engine._seconds = engine._number, None if round == 1 else 0.001
            assert same(rounds.make(round), one_by_one.make(round))
            given.append(engine._number - before)
    assert given[0] == CLIENTS, "one by one while nobody knows what a client takes"
    assert max(given[1:]) < CLIENTS / 2, "then several at a time"


@pytest.mark.parametrize("rule", [ud.scaffold() + ud.fedprox(0.1), ud.feddyn(0.2)], ids=["scaffold", "feddyn"])
@pytest.mark.parametrize("taking_part", [slice(None), slice(1, None), slice(4, 6)])
def test_states_travel_through_slots_that_are_used_again(
    rule: Any, taking_part: slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More clients than slots; who is new shares a state with others, who is not has one of its own."""
    monkeypatch.setattr(local_worker, "_PLACES", 0)
    work = work_of(rule)
    with local(work) as (engine, rounds):
        assert engine.slots < CLIENTS
        expected = serial(work)
        for those in (taking_part, slice(None), slice(None)):
            for found in (rounds, expected):
                found.taking_part = those
            assert same(rounds.make(1), expected.make(1))
            assert all(map(torch.equal, rounds.states(), expected.states()))
    assert any(state.any() for state in rounds.states())


def test_long_clients_are_handed_out_one_by_one() -> None:
    work = work_of(ud.fedavg())
    with local(work) as (engine, rounds):
        rounds.make(1)
        engine._seconds = 1.0
        before = engine._number
        rounds.make(2)
        assert engine._number - before == CLIENTS


@pytest.mark.parametrize("victim", range(WORKERS))
def test_a_worker_that_dies_with_several_clients_is_replaced(victim: int) -> None:
    work = work_of(ud.scaffold())
    with local(work) as (engine, rounds), settled():
        expected = serial(work)
        assert same(rounds.make(1), expected.make(1))
        assert engine._seconds is not None
        assert engine._seconds > 0
        engine._seconds = 0.001
        found = []
        for number, out in enumerate(rounds.outcomes(2)):
            if number == 0:
                os.kill(engine.processes[victim].process.pid or 0, signal.SIGKILL)
            found.append((out.client, out.delta.clone(), out.loss, out.steps))
        assert same(found, expected.make(2))
        assert same(rounds.make(3), expected.make(3))
        assert engine.deaths <= 1


def test_an_update_that_is_not_finite_is_noticed_at_the_worker() -> None:
    work = work_of(ud.fedavg())
    with local(work) as (_, rounds):
        assert all(out.finite for out in rounds.outcomes(1))
        rounds.x[0] = float("nan")
        assert not any(out.finite for out in rounds.outcomes(2))
