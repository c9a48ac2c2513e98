"""What goes down to a client, what comes up from it and what stays there: the messages of a round, described once.

Shared memory, Ray and Flower read the same description (``Messages``); both ends find it out from rule and model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from undrift.core.tree import Packing, Tree
from undrift.rules.chain import Chain
from undrift.rules.rehearsal import rehearse


@dataclass
class Broadcast:
    """What goes down to every client of a round."""

    round: int
    lr: float
    x: Tensor
    buffers: Tensor
    down: Tree

    def tree(self) -> Tree:
        """What is sent, as one tree."""
        return {"x": self.x, "buffers": self.buffers, "down": self.down}


@dataclass
class ClientTask:
    """One client's part of a round."""

    client: int
    kept: Tree
    send: Tree = field(default_factory=dict)
    """Where an engine wants what the rule sends, if it has a place for that."""
    keep: Tree = field(default_factory=dict)
    """The same for what the client keeps from now on."""


@dataclass
class Outcome:
    """What comes back from a client."""

    client: int
    delta: Any
    """The update; where a link encodes it, what is sent instead."""
    buffers: Tensor
    up: Tree
    kept: Tree
    loss: Any
    """Mean training loss over the samples visited: a number, or one that still lies on its device."""
    visits: int
    steps: int
    finite: bool | None = None
    """Whether loss and update are finite, where somebody has looked."""

    def tree(self) -> Tree:
        """What is sent, as one tree; what the client keeps is none of it."""
        return {"delta": self.delta, "buffers": self.buffers, "up": self.up}

    def besides(self, place: Tensor | None) -> Tree:
        """What is sent, but for an update that lies in its place already."""
        tree = self.tree()
        if place is not None and self.delta.data_ptr() == place.data_ptr():
            del tree["delta"]
        return tree


@dataclass
class Lost:
    """A client that did not answer, or whose answer was refused."""

    client: int
    reason: str


@dataclass(frozen=True)
class Messages:
    """How the messages of a run lie in flat vectors."""

    down: Packing
    up: Packing
    kept: Packing
    forms: tuple[Tree, ...] = ()
    """What each of the links that encode was given."""

    @staticmethod
    def of(
        rule: Chain, x: Tensor, buffers: Tensor, personal: tuple[int, int] = (0, 0), *, aligned: bool = True
    ) -> Messages:
        """The messages of a rule about models with these vectors; not ``aligned``: without gaps, as they are sent."""
        found = rehearse(rule, x, personal)
        return Messages(
            Packing.of({"x": x, "buffers": buffers, "down": found.down}, aligned=aligned),
            Packing.of({"delta": found.sent["delta"], "buffers": buffers, "up": found.sent["up"]}, aligned=aligned),
            Packing.of(found.kept, aligned=aligned),
            found.forms,
        )
