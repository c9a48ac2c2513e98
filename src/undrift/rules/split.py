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
from typing import ClassVar, Literal

from undrift.core.schedule import Kind, Schedule
from undrift.errors import ConfigError
from undrift.rules.rule import WHOLE_MODELS, Owns, RoundKind, Rule, overrides

Turns = Iterator[tuple[int, ...]]


@dataclass(frozen=True)
class Timetable:
    """Steps of a round, counted over the cohort: an epoch is as long as the longest of its clients'.

    Clients with fewer batches stop earlier in an epoch.
    """

    batches: dict[int, int]
    """Each client's number of batches in an epoch, in the order of the cohort."""
    epochs: int

    def acts(self, client: int, step: int) -> bool:
        """Whether a client has a batch for this step of the round."""
        return step % max(self.batches.values()) < self.batches[client]

    def periods(self, sync_steps: int | None) -> list[range]:
        """The steps between synchronisations; the round's end is always one."""
        steps = self.epochs * max(self.batches.values())
        size = sync_steps or steps
        return [range(first, min(first + size, steps)) for first in range(0, steps, size)]

    def acting(self, period: range) -> dict[int, int]:
        """The clients that act in a period, and how many steps each makes there."""
        counts = {client: sum(self.acts(client, step) for step in period) for client in self.batches}
        return {client: count for client, count in counts.items() if count}


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

    owns = frozenset({Owns.ROUND_KIND})
    kind = RoundKind.SPLIT
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

    def clash(self, other: Rule, *, first: bool) -> str | None:
        if any(overrides(other, hook) for hook in WHOLE_MODELS):
            return "split rounds have no place for what acts on whole models and their updates"
        return None

    @property
    def alternates(self) -> bool:
        """Whether a client's steps are far apart, so that it should not keep a model of its own in between."""
        return False

    @property
    def whole(self) -> bool:
        """Whether a client's round is one of a whole model in all but the bytes, so that any engine can do it."""
        return self.copies and not (self.faithful or self.sync_steps or self.smashed_noise)

    @property
    def own_rate(self) -> bool:
        """Whether the server part is trained at another rate than the clients'."""
        return self.main_lr is not None or self.main_schedule is not None

    def turns(self, table: Timetable, period: range, order: list[int]) -> Turns:
        """The groups of clients that act together, one after the other; ``order`` is the round's random one."""
        raise NotImplementedError

    def main_rate(self, clients: Schedule, round: int, rounds: int) -> float:
        """The main server's rate in force in a round; ``clients``: the clients' own."""
        first = self.main_lr or clients.value
        if self.main_schedule is None:
            return clients.at(round, rounds) * (first / clients.value)
        schedule = Schedule(first, self.main_schedule, self.main_lr_min, tuple(self.main_milestones), self.main_decay)
        return schedule.at(round, rounds)


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
