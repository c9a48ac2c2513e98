"""The split algorithms: which clients act together, and whose the main server's part is.

The model is cut: client part ``w_c``, server part ``w_s``; ``h(w_s; z)`` is the mean loss of a minibatch whose
activations at the cut are ``z``, ``q_n`` a client's weight among those that act together.

- MiniBatch-SFL: all clients step together. ``w_s <- w_s - eta_s * sum_n q_n grad h(w_s; z_n)``; client ``n`` gets
  ``(1/q_n) * d/dz_n sum_m q_m h(w_s; z_m)`` (without joint batch norm the gradient of its own mean loss) and steps.
- SFL-V1: every client has its own ``w_s`` copy; both parts are averaged.
- SFL-V2: one ``w_s``, updated client after client in a random order.

Client parts are averaged after the round, or after every ``sync_steps`` steps.

Huang, Tian, Tang: When MiniBatch SGD Meets SplitFed Learning, 2023.
Thapa et al., SplitFed: When Federated Learning Meets Split Learning, 2022.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from torch import Tensor, nn

from undrift.errors import ConfigError
from undrift.plan import Plan
from undrift.rule import KIND, Chain, ClientAt, Rule
from undrift.schedule import Kind, Schedule
from undrift.split.halves import AtClient, halve
from undrift.split.timetable import Timetable
from undrift.streams import stream
from undrift.vector import FlatModel, Layout

if TYPE_CHECKING:
    from undrift.engines.base import Engine
    from undrift.round import Observer
    from undrift.split.rounds import SplitRounds
    from undrift.store import Store
    from undrift.worker import Work, Worker

Turns = Iterator[tuple[int, ...]]


@dataclass(frozen=True)
class Split(Rule):
    """What the split algorithms share: where the model is cut, and how its parts are trained."""

    cut: int | str = 1
    """Blocks at the client, or the name of its last layer."""
    main_lr: float | None = None
    """The main server's rate in round 1; None: the clients'."""
    sync_steps: int | None = None
    """Steps between synchronisations of the client parts; None: once, at the end of a round."""
    smashed_noise: float = 0.0
    """Standard deviation of the noise on smashed data, relative to the activations' own."""
    main_schedule: Kind | None = None
    """How the main server's rate changes; None: in proportion to the clients'."""
    main_lr_min: float | None = None
    main_milestones: tuple[int, ...] = ()
    main_decay: float = 0.1
    faithful: bool = False
    """True: every message is handled on its own, where the default takes faster ways to the same numbers."""

    owns = frozenset({KIND})
    copies: ClassVar[bool] = False
    """Whether every client has its own copy of the server part."""
    joint: ClassVar[bool] = False
    """Whether the cohort's smashed data are one batch, for batch norm too."""

    def __post_init__(self) -> None:
        if isinstance(self.cut, int) and self.cut < 1:
            raise ConfigError(f"{self.name}.cut = {self.cut}: at least 1 block must be at the client")
        if self.main_lr is not None and not 0 < self.main_lr < math.inf:
            raise ConfigError(f"{self.name}.main_lr = {self.main_lr}: must be above 0")
        if self.sync_steps is not None and self.sync_steps < 1:
            raise ConfigError(f"{self.name}.sync_steps = {self.sync_steps}: must be at least 1")
        if not 0 <= self.smashed_noise < math.inf:
            raise ConfigError(f"{self.name}.smashed_noise = {self.smashed_noise}: must not be negative")

    @property
    def alternates(self) -> bool:
        """Whether a client's steps are far apart, so that it should not keep a model of its own in between."""
        return False

    @property
    def whole(self) -> bool:
        """Whether a client's round is one of a whole model in all but the bytes, so that any engine can do it."""
        return self.copies and not (self.faithful or self.sync_steps or self.smashed_noise)

    def turns(self, table: Timetable, period: range, order: list[int]) -> Turns:
        """The groups of clients that act together, one after the other; ``order`` is the round's random one."""
        raise NotImplementedError

    def main_rate(self, plan: Plan, round: int) -> float:
        """The main server's rate in force in a round."""
        first = self.main_lr or plan.lr.value
        if self.main_schedule is None:
            return plan.rate(round) * (first / plan.lr.value)
        schedule = Schedule(first, self.main_schedule, self.main_lr_min, tuple(self.main_milestones), self.main_decay)
        return schedule.at(round, plan.rounds)

    def arrange(self, whole: Chain, module: nn.Module, layout: Layout, plan: Plan) -> Chain:
        """Hold the other links to the client's part; refuse those that make no sense there."""
        try:
            front = FlatModel(halve(FlatModel(module), self.cut).client).layout
        except ConfigError as error:
            raise ConfigError(f"{self.name}.{error}") from None
        for link in whole.links:
            _refuse(link, self)
        links = tuple(link if link is self else AtClient.of(link, front) for link in whole.links)
        own_rate = self.main_lr is not None or self.main_schedule is not None
        return Chain((*links, MainRate(self, plan, front.size)) if self.whole and own_rate else links)

    def rounds(
        self, work: Work, engine: Engine, store: Store, worker: Worker, observers: tuple[Observer, ...]
    ) -> SplitRounds:
        """Split rounds."""
        from undrift.split.remote import RemoteRounds
        from undrift.split.rounds import SplitRounds

        # Parties in processes of their own, where the engine has a place for them.
        make = RemoteRounds if hasattr(engine, "spawn") and not self.copies else SplitRounds
        return make(self, work, engine, store, worker, observers)


@dataclass(frozen=True)
class MainRate(Rule):
    """Where a client's round is carried out as one of the whole model: the server part's own rate."""

    split: Split
    plan: Plan
    size: int

    def gradient(self, g: Tensor, y: Tensor, at: ClientAt) -> None:
        """Scale the server part's gradient by the ratio of the rates."""
        ratio = self.split.main_rate(self.plan, at.round) / at.lr
        if ratio != 1.0:
            g[self.size :].mul_(ratio)


def _refuse(link: Rule, split: Split) -> None:
    if getattr(link, "server_weight", None) is not None:
        raise ConfigError(
            f"{link.name}.server_weight: with {split.name!r} the fed server averages clients' parts only, "
            "so the server cannot be one more client of the aggregation"
        )


@dataclass(frozen=True)
class SflV1(Split):
    """Every client trains its part with its own copy of the server part; both are averaged: FedAvg, cut in two."""

    name = "sfl-v1"
    copies = True

    def turns(self, table: Timetable, period: range, order: list[int]) -> Turns:
        """Client after client, each alone with its copy."""
        for client in table.batches:
            yield from ((client,) for step in period if table.acts(client, step))


@dataclass(frozen=True)
class SflV2(Split):
    """One server part, updated client after client in a random order drawn each round.

    ``order = "client"``: all epochs of one client, then the next; ``"step"``: alternating after every batch.
    """

    order: Literal["client", "step"] = "client"
    name = "sfl-v2"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order not in ("client", "step"):
            raise ConfigError(f"sfl-v2.order = {self.order!r}: 'client' or 'step' is allowed")

    @property
    def alternates(self) -> bool:
        """With ``order = "step"``."""
        return self.order == "step"

    def turns(self, table: Timetable, period: range, order: list[int]) -> Turns:
        """One client at a time, in the random order."""
        if self.order == "client":
            visits = ((client, step) for client in order for step in period)
        else:
            visits = ((client, step) for step in period for client in order)
        yield from ((client,) for client, step in visits if table.acts(client, step))


@dataclass(frozen=True)
class MiniBatchSfl(Split):
    """All clients of the cohort step together; the main server makes one step on their joint batch."""

    name = "minibatch-sfl"
    joint = True

    def turns(self, table: Timetable, period: range, order: list[int]) -> Turns:
        """All that have a batch left, together."""
        for step in period:
            yield tuple(client for client in table.batches if table.acts(client, step))


def random_order(seed: int, round: int, cohort: list[int]) -> list[int]:
    """The order in which SFL-V2's main server sees the clients of a round: from the seed alone."""
    return [int(client) for client in stream(seed, "main-order", round).permutation(cohort)]
