"""A rule on a part of the model: on some layers, or on the clients' part of a split model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from undrift.core.tree import Tree
from undrift.core.vector import Layout
from undrift.data.federation import Federation
from undrift.errors import ConfigError
from undrift.rules.chain import links_of
from undrift.rules.rule import WHOLE_MODELS, ClientAt, Owns, Rule, ServerAt, overrides


@dataclass(frozen=True)
class Masked(Rule):
    """A rule on some layers only: it sees, keeps and sends just their part of every vector."""

    rule: Rule
    layers: int | tuple[str, ...]
    name: str
    owns: frozenset[Owns]
    slices: tuple[slice, ...] | None = None

    @property
    def tracked(self) -> bool:  # type: ignore[override]
        """As the rule has it."""
        return self.rule.tracked

    def bind(self, layout: Layout) -> Masked:
        return replace(self, slices=layout.slices_of(self.layers))

    def take(self, vector: Tensor) -> Tensor:
        """The chosen layers' part: a view where they lie side by side, else a copy."""
        assert self.slices is not None, "a masked rule must be bound to a layout first"
        if len(self.slices) == 1:
            return vector[self.slices[0]]
        return torch.cat([vector[piece] for piece in self.slices]) if self.slices else vector[:0]

    def _put(self, part: Tensor, vector: Tensor) -> None:
        """Write a part back into its layers."""
        start = 0
        for piece in self.slices or ():
            size = piece.stop - piece.start
            vector[piece] = part[start : start + size]
            start += size

    def _put_copy(self, part: Tensor, vector: Tensor) -> None:
        """Write a part that was changed in place back, unless it is a view."""
        if len(self.slices or ()) > 1:
            self._put(part, vector)

    def _client(self, at: ClientAt) -> ClientAt:
        full = at.full_gradient
        return replace(at, x=self.take(at.x), full_gradient=lambda: self.take(full()))

    def _server(self, at: ServerAt) -> ServerAt:
        return replace(at, x=self.take(at.x), delta=self.take(at.delta), learn=_no_part_of_learning)

    def init_server(self, x: Tensor) -> Tree:
        return self.rule.init_server(self.take(x))

    def init_client(self, x: Tensor) -> Tree:
        return self.rule.init_client(self.take(x))

    def down(self, state: Tree, round: int) -> Tree:
        return self.rule.down(state, round)

    def start(self, at: ClientAt) -> Tree:
        part = self._client(at)
        part.local = self.rule.start(part)
        return {"at": part}

    def shift(self, y: Tensor, at: ClientAt) -> None:
        part = self.take(y)
        self.rule.shift(part, at.local["at"])
        self._put_copy(part, y)

    def push(self, v: Tensor, at: ClientAt, scale: float) -> None:
        part = self.take(v)
        self.rule.push(part, at.local["at"], scale)
        self._put_copy(part, v)

    @property
    def corrects(self) -> bool:
        return self.rule.corrects

    def gradient(self, g: Tensor, y: Tensor, at: ClientAt) -> None:
        part = self.take(g)
        self.rule.gradient(part, self.take(y), at.local["at"])
        self._put_copy(part, g)

    def up(self, delta: Tensor, at: ClientAt) -> tuple[Tree, Tree]:
        return self.rule.up(self.take(delta), at.local["at"])

    def server(self, step: Tensor, at: ServerAt) -> tuple[Tensor, Tree]:
        step = step.clone()
        part, state = self.rule.server(self.take(step), self._server(at))
        self._put(part, step)
        return step, state


def masked(rule: Rule, layers: int | Sequence[str], name: str = "") -> Masked:
    """``rule`` on the last ``layers`` layers with parameters, or on the layers with these names."""
    for link in links_of(rule):
        if isinstance(link, Masked) or link.owns & {Owns.ROUND_KIND, Owns.EVERYTHING}:
            raise ConfigError(
                f"masked: {link.name!r} already says what it acts on, so it cannot be kept to some layers"
            )
        if any(overrides(link, hook) for hook in ("federate", "mean", "after", *WHOLE_MODELS)):
            raise ConfigError(
                f"masked: {link.name!r} acts on data or whole models, so it cannot be kept to some layers"
            )
    chosen = layers if isinstance(layers, int) else tuple(layers)
    return Masked(rule, chosen, name or f"masked-{rule.name}", rule.owns)


@dataclass(frozen=True)
class ClientPart(Masked):
    """A rule held to the clients' part of a split model, on which it acts as it acts on a whole model in full rounds.

    What it does to the data, and to the whole model after synchronisation, it does as ever.
    """

    @staticmethod
    def of(rule: Rule, front: Layout) -> ClientPart:
        """``rule`` bound to the clients' part of a model."""
        try:
            bound = rule.bind(front)
        except ConfigError as error:
            raise ConfigError(f"algorithm {rule.name!r} acts on the clients' part of the model: {error}") from None
        return ClientPart(bound, (), rule.name, rule.owns, (slice(0, front.size),))

    def bind(self, layout: Layout) -> ClientPart:
        """Bound already, to the clients' part."""
        return self

    def federate(self, federation: Federation, seed: int) -> Federation:
        return self.rule.federate(federation, seed)

    def mean(self, delta: Tensor, at: ServerAt) -> Tensor:
        if not overrides(self.rule, "mean"):
            return delta
        delta = delta.clone()
        self._put(self.rule.mean(self.take(delta), self._server(at)), delta)
        return delta

    def after(self, x: Tensor, at: ServerAt) -> Tensor:
        return self.rule.after(x, at)


def _no_part_of_learning(*_: Any, **__: Any) -> Tensor:
    raise ConfigError("server learning trains whole models: a rule that is kept to a part of one cannot ask for it")
