"""Rules: drift controls that act in their own places of a round.

A rule is a small frozen dataclass: its fields are hyper-parameters, its hooks are functions of what they are
given. FedAvg is the rule without hooks. The places, in the order of a round:

===============  ==========================================================================
``federate``     before round 1: what data a client has
``down``         what goes down with the model
``start``        at the client, once before its steps: what the steps need again and again
``shift``        where the gradient is taken (moves ``y`` in place)
``push``         a vector added to every gradient of the round
``gradient``     the gradient (changed in place), where it takes more than a push
``up``           what comes up with the update, what stays at the client
``mean``         the cohort's mean update, where somebody else is to be counted in
``server``       the server step: from the mean update to the step that is taken
``after``        after the server step
===============  ==========================================================================

State and messages are plain dictionaries of tensors; a chain keeps each link's under the link's name.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from undrift.core.streams import HookRandom
from undrift.core.tree import Tree
from undrift.core.vector import Layout
from undrift.core.words import close
from undrift.data.federation import Federation

if TYPE_CHECKING:
    from undrift.rules.chain import Chain

HOOKS = (
    "bind",
    "federate",
    "init_server",
    "init_client",
    "down",
    "start",
    "shift",
    "push",
    "gradient",
    "up",
    "mean",
    "server",
    "after",
)


class Owns(enum.Enum):
    """What only one rule of a chain may do."""

    SERVER_STEP = "the server step"
    CLIENT_CORRECTION = "the correction of client gradients"
    CLIENT_DATA = "the clients' data"
    ROUND_KIND = "the kind of round"
    EVERYTHING = "everything"


class RoundKind(enum.Enum):
    """How a round is made: whole models at clients, or the front at clients and the back at a main server."""

    FULL = "whole models"
    SPLIT = "split models"


@dataclass
class ClientAt:
    """What a client's hooks are given."""

    x: Tensor
    """The server model at the start of the round."""
    down: Tree
    """What this rule's ``down`` sent."""
    kept: Tree
    """What this client kept from the last round it took part in."""
    lr: float
    """The clients' rate in force in this round."""
    steps: int
    """How many steps this client makes in this round (``K``)."""
    round: int
    full_gradient: Callable[[], Tensor]
    """The gradient of this client's whole loss at ``x``."""
    random: HookRandom
    local: Tree = field(default_factory=dict)
    """What this rule's ``start`` returned."""

    def generator(self, purpose: str = "") -> torch.Generator:
        """Random numbers of this rule's own for a purpose, at this client in this round, whoever carries it out."""
        return self.random.generator(purpose, self.x.device)


class Learn(Protocol):
    """Local SGD on the server's data."""

    def __call__(
        self, start: Tensor, lr: float, *, epochs: int | None = None, steps: int | None = None, batch_size: int = 0
    ) -> Tensor:
        """From ``start``, so many epochs or steps at rate ``lr``; ``batch_size`` 0: all data in one batch."""
        ...


@dataclass
class ServerAt:
    """What the server's hooks are given."""

    x: Tensor
    """The server model at the start of the round."""
    state: Tree
    """This rule's own memory."""
    up: Tree
    """What clients sent for this rule, summed over the cohort with the population weights ``p_i``."""
    delta: Tensor
    """The cohort's mean update, ``sum_i w_i (y_i - x)``."""
    share: float
    """``sum_cohort p_i``: so ``share * delta`` is the update weighted with the population weights."""
    lr: float
    server_lr: float
    round: int
    rounds: int
    population: int
    samples: int
    """All clients' samples."""
    mean_steps: float
    """The cohort's mean number of steps."""
    mean_visits: float
    """The cohort's mean number of samples visited in this round."""
    batch_size: int
    server_samples: int
    """``n_0``."""
    learn: Learn
    random: HookRandom

    def generator(self, purpose: str = "") -> torch.Generator:
        """Random numbers of this rule's own for a purpose, in this round."""
        return self.random.generator(purpose, self.x.device)


def _refuse_misspelt(cls: type[Rule]) -> None:
    """A method that is almost a hook's name would never be called: say so when the class is made."""
    for name, value in cls.__dict__.items():
        if name.startswith("_") or hasattr(Rule, name) or not callable(value):
            continue
        if meant := close(name, HOOKS, cutoff=0.75):
            raise TypeError(f"rule {cls.__name__}: there is no hook {name!r}; did you mean {meant!r}?")


class Rule:
    """Base of all rules; every hook does nothing unless a rule says otherwise."""

    name: str = ""
    owns: frozenset[Owns] = frozenset()
    kind: RoundKind = RoundKind.FULL
    """The kind of round that the rule is made for, where it owns that."""
    needs_server_data: bool = False
    tracked: bool = False
    """True: every client of the population follows the server by a broadcast instead of a download."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()
        _refuse_misspelt(cls)

    def bind(self, layout: Layout) -> Rule:
        """The same rule for a model of this layout; refuses what does not fit."""
        return self

    def federate(self, federation: Federation, seed: int) -> Federation:
        """The federation as this rule wants it before round 1."""
        return federation

    def init_server(self, x: Tensor) -> Tree:
        """The server's memory before round 1."""
        return {}

    def init_client(self, x: Tensor) -> Tree:
        """A client's memory before it first takes part."""
        return {}

    def down(self, state: Tree, round: int) -> Tree:
        """What is sent to the cohort with the model."""
        return {}

    def start(self, at: ClientAt) -> Tree:
        """Computed once before the client's steps, found again as ``at.local``."""
        return {}

    def shift(self, y: Tensor, at: ClientAt) -> None:
        """Move ``y`` in place to where the gradient is taken."""

    def push(self, v: Tensor, at: ClientAt, scale: float) -> None:
        """Add ``scale`` times what is added to every gradient of the round, the same in all steps, to ``v``.

        Where no link needs more, steps are taken without gathering the gradient in one vector first.
        """

    def gradient(self, g: Tensor, y: Tensor, at: ClientAt) -> None:
        """Change the gradient in place."""
        self.push(g, at, 1.0)

    @property
    def corrects(self) -> bool:
        """Whether the rule has to see the gradient."""
        return type(self).gradient is not Rule.gradient

    def up(self, delta: Tensor, at: ClientAt) -> tuple[Tree, Tree]:
        """What is sent with the update ``delta = y_i - x``, and what the client keeps."""
        return {}, {}

    def mean(self, delta: Tensor, at: ServerAt) -> Tensor:
        """The mean update that the server step starts from."""
        return delta

    def server(self, step: Tensor, at: ServerAt) -> tuple[Tensor, Tree]:
        """The step to take instead of ``step``, and the server's new memory."""
        return step, {}

    def after(self, x: Tensor, at: ServerAt) -> Tensor:
        """The new server model, from the one that the server step gave."""
        return x

    def __add__(self, other: Rule) -> Chain:
        from undrift.rules.chain import chain

        return chain(self, other)


class FedAvg(Rule):
    """Federated averaging: ``y <- y - lr*g``; ``x <- x + server_lr * sum_i w_i (y_i - x)``.

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017.
    """

    def __repr__(self) -> str:
        return "FedAvg()"


def overrides(rule: Rule, hook: str) -> bool:
    """Whether a rule fills a hook in."""
    return getattr(type(rule), hook) is not getattr(Rule, hook)
