"""A model, a loss and a rule whose numbers tell the strides and the alignment of all that they are given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import undrift as ud
from undrift.core.tree import Tree, flatten
from undrift.data.federation import Federation, from_clients
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
