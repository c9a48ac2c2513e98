"""A chain with a split algorithm in it, bound to a model: the other links are held to the clients' part."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from undrift.core.vector import FlatModel
from undrift.errors import ConfigError
from undrift.rounds.plan import Plan
from undrift.rounds.split.parts import halve
from undrift.rules.chain import Chain
from undrift.rules.masked import ClientPart
from undrift.rules.rule import ClientAt, Owns, Rule
from undrift.rules.split import Split


def bind_split(whole: Chain, module: nn.Module, plan: Plan, statistics: frozenset[str] | None = None) -> Chain:
    """Hold the other links to the clients' part; refuse those that make no sense there."""
    split = whole.owner_of(Owns.ROUND_KIND)
    assert isinstance(split, Split)
    try:
        front = FlatModel(halve(FlatModel(module, statistics=statistics), split.cut).client).layout
    except ConfigError as error:
        raise ConfigError(f"{split.name}.{error}") from None
    for link in whole.links:
        _refuse(link, split)
    links = tuple(link if link is split else ClientPart.of(link, front) for link in whole.links)
    return Chain((*links, MainRate(split, plan, front.size)) if split.whole and split.own_rate else links)


def _refuse(link: Rule, split: Split) -> None:
    if getattr(link, "server_weight", None) is not None:
        raise ConfigError(
            f"{link.name}.server_weight: with {split.name!r} the fed server averages clients' parts only, "
            "so the server cannot be one more client of the aggregation"
        )


@dataclass(frozen=True)
class MainRate(Rule):
    """Where a client's round is carried out as one of the whole model: the server part's own rate."""

    split: Split
    plan: Plan
    size: int

    def gradient(self, g: Tensor, y: Tensor, at: ClientAt) -> None:
        """Scale the server part's gradient by the ratio of the rates."""
        ratio = self.split.main_rate(self.plan.rates, at.round, self.plan.rounds) / at.lr
        if ratio != 1.0:
            g[self.size :].mul_(ratio)
