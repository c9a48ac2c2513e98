"""Rules: drift controls that act in their own places of a round.

A rule is a small frozen dataclass: its fields are hyper-parameters, its hooks are functions of what they are
given. FedAvg is the rule without hooks. The places, in the order of a round:

===============  ==========================================================================
``federate``     before round 1: what data a client has
``draw``         who takes part in the round
``down``         what goes down with the model
``start``        at the client, once before its steps: what the steps need again and again
``shift``        where the gradient is taken (moves ``y`` in place)
``push``         a vector added to every gradient of the round
``loss``         the loss of a batch, with the model's features
``gradient``     the gradient (changed in place), where it takes more than a push
``up``           what comes up with the update, what stays at the client
``encode``       what a client sends instead of its update and messages, in its true size
``decode``       the same at the server, undone
``receive``      one client's update and messages as the server takes them
``aggregate``    the cohort's mean from its individual updates and messages, instead of the weighted mean
``release``      the cohort's sums before anything else sees them
``mean``         the cohort's mean update, where somebody else is to be counted in
``server``       the server step: from the mean update to the step that is taken
``after``        after the server step
===============  ==========================================================================

State and messages are plain dictionaries of tensors; a chain keeps each link's under the link's name. Layers that never
leave a client are no hook: where a rule names some (``personal_layers``), all others see the model without them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
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
    "draw",
    "init_server",
    "init_client",
    "down",
    "start",
    "shift",
    "push",
    "loss",
    "gradient",
    "up",
    "encode",
    "decode",
    "receive",
    "aggregate",
    "release",
    "mean",
    "server",
    "after",
)

WHOLE_MODELS = ("personal_layers", "draw", "loss", "encode", "receive", "aggregate", "release")
"""What only rounds of whole models can honour, on all layers."""


class Owns(enum.Enum):
    """What only one rule of a chain may do."""

    SERVER_STEP = "the server step"
    CLIENT_CORRECTION = "the correction of client gradients"
    CLIENT_DATA = "the clients' data"
    COHORT = "who takes part"
    AGGREGATE = "how updates are aggregated"
    ROUND_KIND = "the kind of round"
    EVERYTHING = "everything"


class RoundKind(enum.Enum):
    """How a round is made: whole models at clients, or the front at clients and the back at a main server."""

    FULL = "whole models"
    SPLIT = "split models"


@dataclass(frozen=True)
class DrawAt:
    """What is known when the clients of a round are drawn."""

    round: int
    population: int
    """``N``."""
    cohort: int
    """``S``: how many clients are wanted (on average)."""
    sizes: NDArray[np.int64]
    """Every client's number of samples."""
    losses: Callable[[list[int]], list[float]]
    """Some clients' mean losses at the server model: a pass over their data."""
    random: HookRandom

    def generator(self, purpose: str = "") -> torch.Generator:
        """Random numbers of this rule's own for a purpose, in this round."""
        return self.random.generator(purpose)


class Features(Protocol):
    """What a layer gives for the batch at hand."""

    own: Tensor
    """For the model that is trained, one row for each sample; gradients flow through it."""

    def of(self, weights: Tensor) -> Tensor:
        """The same for a model with other weights, in evaluation mode, with the server's running statistics."""
        ...


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
    own: Tree = field(default_factory=dict)
    """Layers that never leave this client, as they are in its model now (``layers``, ``buffers``)."""
    send: Tree = field(default_factory=dict)
    """Where what ``up`` sends may be put, by name, to be there without a copy; ``.get(name)`` may be None."""
    keep: Tree = field(default_factory=dict)
    """The same for what it keeps."""
    decoded: Callable[[Tree], Tree] = lambda sent: sent
    """In ``encode``: what the server makes of what the links before have encoded."""

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
    uniform: bool = False
    """True: clients must weigh alike."""
    expects: bool = False
    """True: what depends on who was drawn (share, number of clients, mean steps) is replaced by its expectation."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()
        _refuse_misspelt(cls)

    def bind(self, layout: Layout) -> Rule:
        """The same rule for a model of this layout; refuses what does not fit."""
        return self

    def for_clients(self, population: int, seed: int) -> Rule:
        """The same rule for so many clients."""
        return self

    def facts(self) -> dict[str, Any]:
        """What is added to a run's summary."""
        return {}

    def federate(self, federation: Federation, seed: int) -> Federation:
        """The federation as this rule wants it before round 1."""
        return federation

    def clash(self, other: Rule, *, first: bool) -> str | None:
        """Why the rule cannot go with another one, if it cannot; ``first``: it stands before the other."""
        return None

    def among(self, others: tuple[Rule, ...]) -> Rule:
        """The same rule in a chain with these others."""
        return self

    def personal_layers(self, layout: Layout) -> tuple[str, ...]:
        """Names of the parameters that never leave a client."""
        return ()

    def restore(self, kept: Tree, own: Tree) -> None:
        """Put the layers that a client kept into its model (``own``: ``layers`` and ``buffers``)."""

    def draw(self, at: DrawAt) -> list[int] | None:
        """The clients that take part in a round; None: as every algorithm draws them."""
        return None

    def ends(self, round: int, at: DrawAt) -> bool:
        """Whether the run must end before this round."""
        return False

    def report(self, round: int, at: DrawAt) -> dict[str, Any]:
        """What is added to the record of an evaluated round."""
        return {}

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

    feature_layer: str | None = None
    """Where a rule has a ``loss``: the layer whose output are the features; None: the input of the last layer."""

    def loss(self, loss: Tensor, features: Features, at: ClientAt) -> Tensor:
        """The loss of a batch, from the one that the task gives."""
        return loss

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

    def encode(self, sent: Tree, at: ClientAt) -> tuple[Tree, Tree]:
        """What is sent instead of ``sent`` (``delta`` and every link's ``up``), and what the client keeps besides.

        Encodings of numbers must be linear in the floating tensors that they send.
        """
        return sent, {}

    def decode(self, sent: Tree, like: Tree) -> Tree:
        """What ``encode`` was given, as far as it can be had back from what it sent; ``like``: its form."""
        return sent

    def receive(self, sent: Tree) -> Tree:
        """One client's ``delta`` and ``up``, decoded, as they are to count."""
        return sent

    def aggregate(self, stacks: dict[str, Tensor]) -> dict[str, Tensor]:
        """The cohort's mean of every vector (``delta``, ``buffers``, ``up/...``) from a stack of the clients' ones."""
        return {path: stack.mean(0) for path, stack in stacks.items()}

    def release(self, sums: Tree, random: HookRandom) -> Tree:
        """The cohort's sums of ``delta`` and ``up`` as the server may see them."""
        return sums

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
