"""Several rules as one: each acts in its own place, and sees only its own messages and memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from undrift.core.streams import HookRandom
from undrift.core.tree import Tree
from undrift.core.vector import Layout
from undrift.data.federation import Federation
from undrift.errors import ConfigError
from undrift.rules.rule import ClientAt, DrawAt, Features, FedAvg, Owns, RoundKind, Rule, ServerAt, overrides


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

    def for_clients(self, population: int, seed: int) -> Chain:
        return Chain(tuple(link.for_clients(population, seed) for link in self.links))

    def facts(self) -> dict[str, Any]:
        return {key: value for link in self.links for key, value in link.facts().items()}

    def federate(self, federation: Federation, seed: int) -> Federation:
        for link in self.links:
            federation = link.federate(federation, seed)
        return federation

    def acting(self, hook: str) -> tuple[Rule, ...]:
        """The links that fill a hook in."""
        return tuple(link for link in self.links if overrides(link, hook))

    @cached_property
    def encoders(self) -> tuple[Rule, ...]:
        """The links that change what is sent."""
        return self.acting("encode")

    @cached_property
    def receivers(self) -> tuple[Rule, ...]:
        """The links that look at every client's update."""
        return self.acting("receive")

    @property
    def uniform(self) -> bool:  # type: ignore[override]
        """Whether clients must weigh alike."""
        return any(link.uniform for link in self.links)

    @cached_property
    def expects(self) -> bool:  # type: ignore[override]
        """Whether what depends on who was drawn is replaced by its expectation."""
        return any(link.expects for link in self.links)

    def personal_layers(self, layout: Layout) -> tuple[str, ...]:
        return tuple(name for link in self.links for name in link.personal_layers(layout))

    def draw(self, at: DrawAt) -> list[int] | None:
        for link in self.acting("draw"):
            return link.draw(self.draw_view(link, at))
        return None

    def ends(self, round: int, at: DrawAt) -> bool:
        return any(link.ends(round, self.draw_view(link, at)) for link in self.links)

    def report(self, round: int, at: DrawAt) -> dict[str, Any]:
        return {key: value for link in self.links for key, value in link.report(round, at).items()}

    @staticmethod
    def draw_view(link: Rule, at: DrawAt) -> DrawAt:
        """What a link is given when clients are drawn: its own random numbers."""
        return replace(at, random=replace(at.random, rule=link.name))

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
        name, own = link.name, replace(at.random, rule=link.name)
        send, keep = at.send.get(name, {}), at.keep.get(name, {})
        return replace(at, down=at.down[name], kept=at.kept[name], random=own, send=send, keep=keep)

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

    def loss(self, loss: Tensor, features: Features, at: ClientAt) -> Tensor:
        for link in self.links:
            loss = link.loss(loss, features, at.local[link.name])
        return loss

    def gradient(self, g: Tensor, y: Tensor, at: ClientAt) -> None:
        for link in self.links:
            link.gradient(g, y, at.local[link.name])

    def up(self, delta: Tensor, at: ClientAt) -> tuple[Tree, Tree]:
        both = {link.name: link.up(delta, at.local[link.name]) for link in self.links}
        return {name: sent for name, (sent, _) in both.items()}, {name: kept for name, (_, kept) in both.items()}

    def encode(self, sent: Tree, at: ClientAt) -> tuple[Tree, Tree]:
        forms: tuple[Tree, ...] = ()
        kept = {}
        for link in self.encoders:
            view = replace(at.local[link.name], decoded=partial(self.undone, forms=forms))
            forms = (*forms, sent)
            sent, kept[link.name] = link.encode(sent, view)
        return sent, kept

    def undone(self, sent: Tree, forms: tuple[Tree, ...]) -> Tree:
        """What was given to the first of the encoders; ``forms``: what each of the first ones was given looks like."""
        for link, like in reversed(list(zip(self.encoders, forms, strict=False))):
            sent = link.decode(sent, like)
        return sent

    def receive(self, sent: Tree) -> Tree:
        for link in self.receivers:
            sent = link.receive(sent)
        return sent

    def aggregate(self, stacks: dict[str, Tensor]) -> dict[str, Tensor]:
        (owner,) = self.acting("aggregate")
        return owner.aggregate(stacks)

    def release(self, sums: Tree, random: HookRandom) -> Tree:
        for link in self.acting("release"):
            sums = link.release(sums, replace(random, rule=link.name))
        return sums

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
    return Chain(tuple(link.among(links) for link in links))


def _owned(rule: Rule) -> frozenset[Owns]:
    """What a rule owns, said or not: only one can draw the clients, and only one can aggregate their updates."""
    filled = {what for hook, what in (("draw", Owns.COHORT), ("aggregate", Owns.AGGREGATE)) if overrides(rule, hook)}
    return rule.owns | filled


def _refuse_clash(first: Rule, second: Rule) -> None:
    if first.name == second.name:
        raise ConfigError(f"algorithm: {first.name!r} is given twice")
    for rule, other in ((first, second), (second, first)):
        if Owns.EVERYTHING in rule.owns:
            raise ConfigError(
                f"algorithm: {rule.name!r} has no rounds between clients, so {other.name!r} cannot act in it"
            )
    if clash := sorted(what.value for what in _owned(first) & _owned(second)):
        raise ConfigError(f"algorithm: {first.name!r} and {second.name!r} cannot be combined: both own {clash[0]}")
    if reason := first.clash(second, first=True) or second.clash(first, first=False):
        raise ConfigError(f"algorithm: {first.name!r} and {second.name!r} cannot be combined: {reason}")
