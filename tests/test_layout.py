"""What is computed on does not depend on how it travelled: strides and alignment are the same on every engine.

These tests look at the memory itself, so they fail on any processor, whether or not its results would differ.
(Ray: tests/engines; Flower: tests/flower.)
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from memory_layout import SHAPES, numbers, run, unaligned
from undrift.data.federation import federation
from undrift.data.layout import laid_out, rows
from undrift.data.samples import InMemory
from undrift.engines.auto import engine_for


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_workers_compute_on_the_same_memory_layout(shape: tuple[int, ...]) -> None:
    here = numbers(run(shape, engine_for, 0))
    assert numbers(run(shape, engine_for, 1)) == here
    assert numbers(run(shape, engine_for, 2)) == here


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
    pool = InMemory(x, y)
    made = federation(pool, parts, server=InMemory(x, y), test=InMemory(x, y), validation=0.2)
    found = [made.pool, made.server, made.test, made.validation, made.shared(1.0, 0).pool]
    tensors = [leaf for part in found if isinstance(part, InMemory) for leaf in (part.inputs, part.targets)]
    assert len(tensors) == 10
    for tensor in tensors:
        assert tensor.data_ptr() % 64 == 0
        if tensor.dim() == 4:
            assert tensor.stride() == (16, 1, 4, 1)
