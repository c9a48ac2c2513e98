"""What a cut costs: parameters and multiply-adds of each side, and the bytes of a round, for every cut of a model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from undrift.models.blocks import blocks, cut
from undrift.rounds.plan import Plan


@dataclass(frozen=True)
class Side:
    """One side of a cut model."""

    parameters: int
    madds: int
    """Multiply-adds of one sample's forward pass, in convolutions and dense layers."""


@dataclass(frozen=True)
class Cut:
    """A model cut after so many blocks."""

    blocks: int
    last: str
    """The client's last layer."""
    client: Side
    server: Side
    smashed: int
    """Numbers sent up for one sample, and as many down again."""
    front_bytes: int
    """The client's part with its running statistics."""
    smashed_bytes: int

    @property
    def share(self) -> float:
        """The client's share of the multiply-adds."""
        return self.client.madds / (self.client.madds + self.server.madds)

    def bytes_per_round(self, clients: int, visits: int, label_bytes: int = 8) -> tuple[int, int]:
        """Down and up, for so many clients that visit so many samples together in a round."""
        down = clients * self.front_bytes + visits * self.smashed_bytes
        return down, down + visits * label_bytes


def cut_table(model: nn.Sequential, input_shape: Sequence[int]) -> list[Cut]:
    """Every cut between blocks, from the smallest client to the largest."""
    dtype = next(model.parameters()).dtype
    sample = torch.zeros((1, *input_shape), dtype=dtype)
    return [_row(model, where, names[-1], sample) for where, names in enumerate(blocks(model)[:-1], start=1)]


def expected_visits(plan: Plan, sizes: Sequence[int]) -> tuple[int, int]:
    """Clients of a round, and the samples that they visit together, on average over the draws."""
    cohort = min(plan.cohort or len(sizes), len(sizes))
    return cohort, round(sum(plan.visits(int(size)) for size in sizes) * cohort / len(sizes))


def _row(model: nn.Sequential, where: int, last: str, sample: Tensor) -> Cut:
    client, server = cut(model, where)
    z, client_madds = _forward(client, sample)
    _, server_madds = _forward(server, z)
    statistics = [buffer for buffer in client.buffers() if buffer.is_floating_point()]
    return Cut(
        where,
        last,
        Side(_count(client), client_madds),
        Side(_count(server), server_madds),
        z.numel(),
        sum(tensor.nbytes for tensor in (*client.parameters(), *statistics)),
        z.nbytes,
    )


def _count(part: nn.Module) -> int:
    return sum(parameter.numel() for parameter in part.parameters())


def _forward(part: nn.Sequential, x: Tensor) -> tuple[Tensor, int]:
    """The output for one sample and the multiply-adds that it took; modes and statistics stay as they were."""
    modes = {module: module.training for module in part.modules()}
    part.eval()
    counts: list[int] = []
    with _counted(part, counts), torch.no_grad():
        z: Tensor = part(x)
    for module, mode in modes.items():
        module.training = mode
    return z, sum(counts)


@contextlib.contextmanager
def _counted(part: nn.Module, counts: list[int]) -> Iterator[None]:
    def count(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if isinstance(layer, nn.Linear):
            counts.append(output.numel() * layer.in_features)
        elif isinstance(layer, _ConvNd):
            # Every weight meets every position: of the output, or, transposed, of the input.
            positions = inputs[0] if isinstance(layer, _ConvTransposeNd) else output
            counts.append(layer.weight.numel() * positions[0, 0].numel() * len(positions))

    layers = [layer for layer in part.modules() if isinstance(layer, nn.Linear | _ConvNd)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
