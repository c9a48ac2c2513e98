"""Several rules as one: each acts in its own place, and sees only its own messages and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from undrift.core.tree import Tree
from undrift.core.vector import Layout
from undrift.data.federation import Federation
from undrift.errors import ConfigError
from undrift.rules.rule import ClientAt, FedAvg, Owns, RoundKind, Rule, ServerAt


@dataclass(frozen=True)
class Chain(Rule):
    """Several rules, each acting in its own place; where two act in the same place, in the given order."""

    links: tuple[Rule, ...]

    @property
    def owns(self) -> frozenset[Owns]:  # type: ignore[override]
        """What any link owns."""
        return frozenset().union(*(link.owns for link in self.links))

    def owner_of(self, what: Owns) -> Rule | None:
        """The link that owns ``what``, if any does."""
        return next((link for link in self.links if what in link.owns), None)

    @property
    def kind(self) -> RoundKind:  # type: ignore[override]
        """The kind of round that the chain is made for."""
        owner = self.owner_of(Owns.ROUND_KIND)
        return RoundKind.FULL if owner is None else owner.kind

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

    def start(self, at: ClientAt) -> Tree:
        views = {link.name: self.client_view(link, at) for link in self.links}
        for link in self.links:
            views[link.name].local = link.start(views[link.name])
        return dict(views)

    @staticmethod
    def client_view(link: Rule, at: ClientAt) -> ClientAt:
        """What a link is given at a client: its own messages, memory and random numbers only."""
        own = replace(at.random, rule=link.name)
        return replace(at, down=at.down[link.name], kept=at.kept[link.name], random=own)

    @staticmethod
    def server_view(link: Rule, at: ServerAt) -> ServerAt:
        """What a link is given at the server."""
        own = replace(at.random, rule=link.name)
        return replace(at, state=at.state[link.name], up=at.up[link.name], random=own)

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

    def mean(self, delta: Tensor, at: ServerAt) -> Tensor:
        for link in self.links:
            delta = link.mean(delta, self.server_view(link, at))
        return delta

    def server(self, step: Tensor, at: ServerAt) -> tuple[Tensor, Tree]:
        state = {}
        for link in self.links:
            step, state[link.name] = link.server(step, self.server_view(link, at))
        return step, state

    def after(self, x: Tensor, at: ServerAt) -> Tensor:
        for link in self.links:
            x = link.after(x, self.server_view(link, at))
        return x


def links_of(rule: Rule) -> tuple[Rule, ...]:
    """The links of a chain; of any other rule, the rule itself."""
    return rule.links if isinstance(rule, Chain) else (rule,)


def chain(*rules: Rule) -> Chain:
    """Combine rules; refuses pairs that make no sense."""
    links = tuple(link for rule in rules for link in links_of(rule) if not isinstance(link, FedAvg))
    for position, link in enumerate(links):
        for earlier in links[:position]:
            _refuse_clash(earlier, link)
    return Chain(links)


def _refuse_clash(first: Rule, second: Rule) -> None:
    if first.name == second.name:
        raise ConfigError(f"algorithm: {first.name!r} is given twice")
    for rule, other in ((first, second), (second, first)):
        if Owns.EVERYTHING in rule.owns:
            raise ConfigError(
                f"algorithm: {rule.name!r} has no rounds between clients, so {other.name!r} cannot act in it"
            )
    if clash := sorted(what.value for what in first.owns & second.owns):
        raise ConfigError(f"algorithm: {first.name!r} and {second.name!r} cannot be combined: both own {clash[0]}")
