"""Fewer bytes: top-k with error feedback, and stochastic quantisation.

- topk: a client adds what it did not send before to its update, ``v = delta_i + e_i``, sends the ``fraction`` of
  entries that are largest by magnitude (values and places), and keeps the rest, ``e_i <- v - sent``.
- quantise: every layer of every vector that is sent is rounded at random to ``2^(bits-1) - 1`` steps on either side
  of 0, ``s*q/steps`` with ``s`` the layer's largest magnitude and ``E[s*q/steps]`` the vector itself.

What is packed is what is sent: 4 bytes for a place, ``bits`` bits for a quantised number, one ``s`` for each layer.

Stich, Cordonnier, Jaggi: Sparsified SGD with Memory, 2018.
Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, 2017 (scaled by the largest
entry, as in its experiments).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from undrift.core.tree import Tree
from undrift.core.vector import Layout
from undrift.errors import ConfigError, MessageError
from undrift.rules.rule import ClientAt, Rule

PLACES = torch.int32
Layers = tuple[tuple[tuple[int, int], ...], ...]


@dataclass(frozen=True)
class TopK(Rule):
    """The largest entries of an update; the rest is added to the next one."""

    fraction: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ConfigError(f"topk.fraction = {self.fraction}: must be above 0 and at most 1")

    def init_client(self, x: Tensor) -> Tree:
        return {"e": torch.zeros_like(x)} if self.fraction < 1 else {}

    def clash(self, other: Rule, *, first: bool) -> str | None:
        if not first and isinstance(other, Quantise):
            return "the largest entries are chosen before numbers are rounded; topk+quantise is allowed"
        if not first and other.expects:
            return (
                f"what topk adds from earlier rounds would not be clipped by {other.name!r}; "
                f"topk+{other.name} is allowed"
            )
        return None

    def encode(self, sent: Tree, at: ClientAt) -> tuple[Tree, Tree]:
        if self.fraction == 1:
            return sent, {}
        v = sent["delta"] + at.kept["e"]
        places = v.abs().topk(self.count(len(v)), sorted=False).indices.sort().values
        rest = v.clone()
        rest[places] = 0
        return sent | {"delta": {"values": v[places], "places": places.to(PLACES)}}, {"e": rest}

    def decode(self, sent: Tree, like: Tree) -> Tree:
        if self.fraction == 1:
            return sent
        size, places = len(like["delta"]), sent["delta"]["places"].long()
        if len(places) and not 0 <= int(places.min()) <= int(places.max()) < size:
            raise MessageError(f"topk: places of entries must lie between 0 and {size - 1}")
        delta = torch.zeros_like(like["delta"])
        delta[places] = sent["delta"]["values"]
        return sent | {"delta": delta}

    def count(self, size: int) -> int:
        """How many entries of a vector are sent."""
        return max(1, math.ceil(self.fraction * size))


@dataclass(frozen=True)
class Quantise(Rule):
    """Numbers of ``bits`` bits, rounded at random so that they are right on average."""

    bits: int = 8
    layers: Layers = ()
    """The layers of a model, as pieces of its vector; vectors that are no whole model are one layer."""

    def __post_init__(self) -> None:
        if self.bits not in (8, 4, 2):
            raise ConfigError(f"quantise.bits = {self.bits}: 8, 4 or 2 is allowed")

    def bind(self, layout: Layout) -> Quantise:
        return replace(self, layers=tuple(tuple((s.start, s.stop) for s in layer.slices) for layer in layout.layers))

    def clash(self, other: Rule, *, first: bool) -> str | None:
        if not first and other.expects:
            return f"rounding can lengthen what {other.name!r} has clipped; quantise+{other.name} is allowed"
        return None

    @property
    def steps(self) -> int:
        """Steps on either side of 0."""
        return int(2 ** (self.bits - 1)) - 1

    def encode(self, sent: Tree, at: ClientAt) -> tuple[Tree, Tree]:
        return _replaced(sent, sent, lambda path, leaf, _: self._rounded(leaf, at.generator(path))), {}

    def decode(self, sent: Tree, like: Tree) -> Tree:
        return _replaced(sent, like, lambda _, leaf, form: self._read(leaf, form))

    def _rounded(self, v: Tensor, generator: torch.Generator) -> Tree:
        v = v.reshape(-1)
        scale = self._scales(v)
        spread = self._spread(torch.where(scale > 0, scale, 1), len(v))
        level = v / spread * self.steps
        low = level.floor()
        chance = torch.rand(len(v), generator=generator, dtype=v.dtype, device=v.device)
        q = (low + (chance < level - low)).clamp(-self.steps, self.steps)
        return {"levels": self._packed((q + self.steps).to(torch.uint8)), "scale": scale}

    def _read(self, sent: Tree, like: Tensor) -> Tensor:
        q = self._unpacked(sent["levels"], like.numel()).to(like.dtype) - self.steps
        v = q.clamp(max=self.steps) * self._spread(sent["scale"] / self.steps, like.numel())
        return v.view(like.shape)

    def _layers(self, size: int) -> Layers:
        whole = sum(end - start for layer in self.layers for start, end in layer)
        return self.layers if size == whole else (((0, size),),)

    def _scales(self, v: Tensor) -> Tensor:
        layers = self._layers(len(v))
        return torch.stack([torch.stack([v[a:b].abs().max() for a, b in layer]).max() for layer in layers])

    def _spread(self, scale: Tensor, size: int) -> Tensor:
        """Each layer's number in all of its places."""
        out = scale.new_empty(size)
        for number, layer in enumerate(self._layers(size)):
            for a, b in layer:
                out[a:b] = scale[number]
        return out

    def _packed(self, levels: Tensor) -> Tensor:
        """Several numbers in a byte."""
        each = 8 // self.bits
        rows = torch.nn.functional.pad(levels, (0, -len(levels) % each)).view(-1, each)
        return sum((rows[:, i] << (self.bits * i) for i in range(1, each)), rows[:, 0])

    def _unpacked(self, packed: Tensor, size: int) -> Tensor:
        each, mask = 8 // self.bits, 2**self.bits - 1
        return torch.stack([(packed >> (self.bits * i)) & mask for i in range(each)], 1).flatten()[:size]


def quantise(bits: Literal[8, 4, 2] = 8) -> Quantise:
    """Numbers of ``bits`` bits, rounded at random so that they are right on average."""
    return Quantise(bits)


def _replaced(sent: Tree, like: Tree, change: Callable[[str, Any, Tensor], Any], path: str = "") -> Tree:
    """A tree in which vectors of floating numbers are changed; single numbers and places stay."""
    out: Tree = {}
    for name, form in like.items():
        here = f"{path}/{name}"
        if isinstance(form, dict):
            out[name] = _replaced(sent[name], form, change, here)
        elif form.is_floating_point() and form.numel() > 1:
            out[name] = change(here, sent[name], form)
        else:
            out[name] = sent[name]
    return out
