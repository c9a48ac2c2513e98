"""Rules: drift controls that act in their own places of a round, and how they combine.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from undrift.errors import ConfigError
from undrift.tree import Tree
from undrift.vector import Layout

if TYPE_CHECKING:
    from undrift.engines.base import Engine
    from undrift.federation import Federation
    from undrift.plan import Plan
    from undrift.round import FullRounds, Observer
    from undrift.store import Store
    from undrift.worker import Work, Worker

KIND = "the kind of round"
"""What a rule owns that makes rounds of another kind than training whole models at clients."""


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
    local: Tree = field(default_factory=dict)
    """What this rule's ``start`` returned."""


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
    learn: Callable[[Tensor, float, int | None, int | None, int | None], Tensor]
    """``learn(start, rate, epochs, steps, batch_size)``: local SGD on the server's data."""


class Rule:
    """Base of all rules; every hook does nothing unless a rule says otherwise."""

    name: str = ""
    owns: frozenset[str] = frozenset()
    """What only one rule of a chain may do: ``"the server step"``, ``"the correction of client gradients"`` …"""
    needs_server_data: bool = False
    tracked: bool = False
    """True: every client of the population follows the server by a broadcast instead of a download."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__.lower()

    def bind(self, layout: Layout) -> Rule:
        """The same rule for a model of this layout; refuses what does not fit."""
        return self

    def arrange(self, whole: Chain, module: nn.Module, layout: Layout, plan: Plan) -> Chain:
        """The chain that this rule is a link of, bound to a model; asked of the rule that owns ``KIND``."""
        return whole.bind(layout)

    def rounds(
        self, work: Work, engine: Engine, store: Store, worker: Worker, observers: tuple[Observer, ...]
    ) -> FullRounds:
        """What makes the rounds; asked of the rule that owns ``KIND``."""
        raise NotImplementedError(f"{self.name} does not make rounds")

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
        return chain(self, other)


class FedAvg(Rule):
    """Federated averaging: ``y <- y - lr*g``; ``x <- x + server_lr * sum_i w_i (y_i - x)``.

    McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, 2017.
    """

    def __repr__(self) -> str:
        return "FedAvg()"


@dataclass(frozen=True)
class Chain(Rule):
    """Several rules, each acting in its own place; where two act in the same place, in the given order."""

    links: tuple[Rule, ...]

    @property
    def owns(self) -> frozenset[str]:  # type: ignore[override]
        """What any link owns."""
        return frozenset().union(*(link.owns for link in self.links))

    def bind(self, layout: Layout) -> Chain:
        return Chain(tuple(link.bind(layout) for link in self.links))

    def federate(self, federation: Federation, seed: int) -> Federation:
        for link in self.links:
            federation = link.federate(federation, seed)
        return federation

    @cached_property
    def corrects(self) -> bool:
        """Whether any link has to see the gradient."""
        return any(link.corrects for link in self.links)

    def init_server(self, x: Tensor) -> Tree:
        return {link.name: link.init_server(x) for link in self.links}

    def init_client(self, x: Tensor) -> Tree:
        return {link.name: link.init_client(x) for link in self.links}

    def down(self, state: Tree, round: int) -> Tree:
        return {link.name: link.down(state[link.name], round) for link in self.links}

    def views(self, at: ClientAt) -> dict[str, ClientAt]:
        """What each link is given: its own messages and memory only."""
        return {link.name: replace(at, down=at.down[link.name], kept=at.kept[link.name]) for link in self.links}

    def start(self, at: ClientAt) -> Tree:
        views = self.views(at)
        for link in self.links:
            views[link.name].local = link.start(views[link.name])
        return dict(views)

    def shift(self, y: Tensor, at: ClientAt) -> None:
        for link in self.links:
            link.shift(y, at.local[link.name])

    def push(self, v: Tensor, at: ClientAt, scale: float) -> None:
        for link in self.links:
            link.push(v, at.local[link.name], scale)

    def gradient(self, g: Tensor, y: Tensor, at: ClientAt) -> None:
        for link in self.links:
            link.gradient(g, y, at.local[link.name])

    def up(self, delta: Tensor, at: ClientAt) -> tuple[Tree, Tree]:
        both = {link.name: link.up(delta, at.local[link.name]) for link in self.links}
        return {name: sent for name, (sent, _) in both.items()}, {name: kept for name, (_, kept) in both.items()}

    def _own(self, link: Rule, at: ServerAt) -> ServerAt:
        return replace(at, state=at.state[link.name], up=at.up[link.name])

    def mean(self, delta: Tensor, at: ServerAt) -> Tensor:
        for link in self.links:
            delta = link.mean(delta, self._own(link, at))
        return delta

    def server(self, step: Tensor, at: ServerAt) -> tuple[Tensor, Tree]:
        state = {}
        for link in self.links:
            step, state[link.name] = link.server(step, self._own(link, at))
        return step, state

    def after(self, x: Tensor, at: ServerAt) -> Tensor:
        for link in self.links:
            x = link.after(x, self._own(link, at))
        return x


def chain(*rules: Rule) -> Chain:
    """Combine rules; refuses pairs that make no sense."""
    links = tuple(link for rule in rules for link in (rule.links if isinstance(rule, Chain) else (rule,)))
    links = tuple(link for link in links if not isinstance(link, FedAvg))
    for position, link in enumerate(links):
        for earlier in links[:position]:
            _refuse_clash(earlier, link)
    return Chain(links)


def _refuse_clash(first: Rule, second: Rule) -> None:
    if first.name == second.name:
        raise ConfigError(f"algorithm: {first.name!r} is given twice")
    for rule, other in ((first, second), (second, first)):
        if "everything" in rule.owns:
            raise ConfigError(
                f"algorithm: {rule.name!r} has no rounds between clients, so {other.name!r} cannot act in it"
            )
    if clash := sorted(first.owns & second.owns):
        raise ConfigError(f"algorithm: {first.name!r} and {second.name!r} cannot be combined: both own {clash[0]}")


def owner_of(rule: Chain, what: str) -> Rule | None:
    """The link that owns ``what``, if any does."""
    return next((link for link in rule.links if what in link.owns), None)


@dataclass(frozen=True)
class Masked(Rule):
    """A rule on some layers only: it sees, keeps and sends just their part of every vector."""

    rule: Rule
    layers: int | tuple[str, ...]
    name: str
    owns: frozenset[str]
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
        part, state = self.rule.server(self.take(step), replace(at, x=self.take(at.x), delta=self.take(at.delta)))
        self._put(part, step)
        return step, state


def masked(rule: Rule, layers: int | Sequence[str], name: str = "") -> Masked:
    """``rule`` on the last ``layers`` layers with parameters, or on the layers with these names."""
    for link in rule.links if isinstance(rule, Chain) else (rule,):
        if isinstance(link, Masked) or KIND in link.owns or "everything" in link.owns:
            raise ConfigError(
                f"masked: {link.name!r} already says what it acts on, so it cannot be kept to some layers"
            )
        if any(getattr(type(link), hook) is not getattr(Rule, hook) for hook in ("federate", "mean", "after")):
            raise ConfigError(
                f"masked: {link.name!r} acts on data or whole models, so it cannot be kept to some layers"
            )
    chosen = layers if isinstance(layers, int) else tuple(layers)
    return Masked(rule, chosen, name or f"masked-{rule.name}", rule.owns)
