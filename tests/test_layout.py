"""What is computed on does not depend on how it travelled: strides and alignment are the same on every engine.

These tests look at the memory itself, so they fail on any processor, whether or not its results would differ.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import undrift as ud
from undrift.core.tree import Tree, flatten
from undrift.data.dataset import laid_out, rows
from undrift.data.federation import Federation, federation, from_clients
from undrift.engines.auto import engine_for
from undrift.rounds.loop import Result, Run
from undrift.rounds.plan import Plan
from undrift.rounds.prepare import prepare
from undrift.rules.rule import ClientAt

SHAPES = [(1, 6, 6), (3, 5, 4), (2, 1, 7), (1, 1, 1), (8,), (1,), (3, 1)]
Pair = tuple[Tensor, Tensor]


def mark(tensor: Tensor) -> float:
    """A number for strides and alignment."""
    found = (*tensor.stride(), tensor.data_ptr() % 64 == 0, tensor.is_contiguous())
    return float(hash(found) % 10007) / 10007


class Marks(nn.Module):
    """A model whose outputs tell the strides and the alignment of what it was given."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1))
        return out + mark(x)


class LabelMarks:
    """A loss that tells those of the labels."""

    def __call__(self, out: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(out, labels) + out.mean() * (1 + mark(labels))


@dataclass(frozen=True)
class Spy(ud.Rule):
    """Sends and keeps what it sees of the tensors that hooks are given."""

    def init_server(self, x: Tensor) -> Tree:
        return {"a": torch.zeros(3, dtype=x.dtype), "b": torch.zeros(5, dtype=x.dtype)}

    def init_client(self, x: Tensor) -> Tree:
        return {"a": torch.zeros(3, dtype=x.dtype), "b": torch.zeros(7, dtype=x.dtype)}

    def down(self, state: Tree, round: int) -> Tree:
        return state

    def up(self, delta: Tensor, at: ClientAt) -> tuple[Tree, Tree]:
        seen = [at.x, delta, *flatten(at.down).values(), *flatten(at.kept).values()]
        marks = torch.tensor([mark(tensor) for tensor in seen], dtype=delta.dtype)
        return {"a": torch.zeros(3), "marks": marks, "b": torch.zeros(1)}, {
            "a": marks[:3].clone(),
            "b": at.kept["b"] + 1,
        }

    def server(self, step: Tensor, at: ud.ServerAt) -> tuple[Tensor, Tree]:
        return step + at.up["marks"].sum(), {"a": at.state["a"] + at.up["a"], "b": at.state["b"] + 1}


def unaligned(tensor: Tensor) -> Tensor:
    """The same numbers in memory that begins somewhere else."""
    room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:]
    return room.copy_(tensor.flatten()).view(tensor.shape)


def clients(shape: tuple[int, ...]) -> Federation:
    draw = torch.Generator().manual_seed(1)
    sizes = (14, 23, 12)
    pairs = [(torch.randn(n, *shape, generator=draw), torch.randint(0, 3, (n,), generator=draw)) for n in sizes]
    test = (unaligned(pairs[1][0]), unaligned(pairs[1][1]))
    return from_clients(pairs, server=test, test=test)


def run(shape: tuple[int, ...], make: Any, workers: int | None) -> Result:
    torch.manual_seed(0)
    plan = Plan(rounds=2, lr=0.05, batch_size=5, cohort=2)
    rule = Spy() + ud.fsl(gamma=0.5)
    work = prepare(Marks(int(np.prod(shape))), rule, clients(shape), plan, LabelMarks(), "cpu")
    return Run(work, make, workers).go()


def numbers(result: Result) -> tuple[list[float], list[dict[str, Any]]]:
    assert result.server is not None
    records = [{key: value for key, value in record.items() if key != "seconds"} for record in result.history]
    return result.server.x.tolist(), records


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_workers_compute_on_the_same_memory_layout(shape: tuple[int, ...]) -> None:
    here = numbers(run(shape, engine_for, 0))
    assert numbers(run(shape, engine_for, 1)) == here
    assert numbers(run(shape, engine_for, 2)) == here


def test_ray_computes_on_the_same_memory_layout() -> None:
    ray = pytest.importorskip("ray")
    from undrift.engines.ray import Cluster

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

    for shape in ((1, 6, 6), (1, 1, 1), (3, 1)):
        assert numbers(run(shape, Cluster(), 1)) == numbers(run(shape, engine_for, 0))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_data_are_laid_out_alike_wherever_they_come_from(shape: tuple[int, ...]) -> None:
    whole = torch.arange(12.0 * float(np.prod(shape))).view(12, *shape)
    ways = [whole, unaligned(whole), whole.flip(0).flip(0), torch.from_numpy(whole.numpy().copy(order="F"))]
    if len(shape) == 3:
        ways += [
            whole.contiguous(memory_format=torch.channels_last),
            whole.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
        ]
    expected = laid_out(whole)
    for way in ways:
        found = laid_out(way)
        assert torch.equal(found, whole)
        assert found.stride() == expected.stride()
        assert found.data_ptr() % 64 == 0
    index = torch.tensor([3, 1, 7])
    gathered = rows(expected, index)
    assert gathered.stride() == expected.stride()
    assert torch.equal(gathered, whole[index])


def test_every_part_of_a_federation_is_laid_out() -> None:
    x, y = unaligned(torch.randn(30, 1, 4, 4)), unaligned(torch.arange(30) % 3)
    parts = [np.arange(0, 15), np.arange(15, 30)]
    made = federation(x, y, parts, server=(x, y), test=(x, y), validation=0.2)
    assert made.server is not None
    assert made.test is not None
    assert made.validation is not None
    for tensor in (made.x, *made.server, *made.test, *made.validation, made.shared(1.0, 0).x):
        assert tensor.data_ptr() % 64 == 0
        if tensor.dim() == 4:
            assert tensor.stride() == (16, 1, 4, 1)
