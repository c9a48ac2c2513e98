"""FSL, federated learning with server learning: after each aggregation the server trains on its own data.

From ``x_bar = x + server_lr*delta`` the server takes ``K_0`` SGD steps on ``D_0`` at rate ``gamma*eta_0``; the
result is the new ``x``. Without a given ``eta_0`` server and clients move equally far,
``eta_0 = server_lr * lr * K / K_0`` (``K``: the cohort's mean), with
``E_s = ceil(samples that a client visits in a round, on average / n_0)`` server epochs.

Not incremental (FSL-p): both start from ``x`` and their moves are added. With ``server_weight = w_0`` the server
is one more client of the aggregation: ``x <- x + server_lr*((1 - w_0)*delta + w_0*delta_0)``.

Mai, La, Zhang: Federated Learning with Server Learning: Enhancing Performance for Non-IID Data, 2022 (and the
conference version, where ``eta_0`` and ``E_s`` are given).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from undrift.core.schedule import Kind, Schedule
from undrift.errors import ConfigError
from undrift.rules.rule import Rule, ServerAt


@dataclass(frozen=True)
class Fsl(Rule):
    """Server learning; whatever its place in a chain, it acts last in a round (``server_weight``: in the mean)."""

    gamma: float | Literal["ds"] = 1.0
    gamma_schedule: Kind = "constant"
    gamma_min: float | None = None
    gamma_milestones: tuple[int, ...] = ()
    gamma_decay: float = 0.1
    lr: float | None = None
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    incremental: bool = True
    server_weight: float | None = None
    needs_server_data = True

    def __post_init__(self) -> None:
        if isinstance(self.gamma, str):
            if self.gamma != "ds":
                raise ConfigError(f'fsl.gamma = {self.gamma!r}: a number, or "ds" for N*n_0/n')
        elif self.gamma < 0:
            raise ConfigError(f"fsl.gamma = {self.gamma}: must not be negative")
        if self.epochs is not None and self.steps is not None:
            raise ConfigError("fsl: give epochs or steps, not both")
        for name, value in (("epochs", self.epochs), ("steps", self.steps)):
            if value is not None and value < 1:
                raise ConfigError(f"fsl.{name} = {value}: must be at least 1")
        if self.batch_size is not None and self.batch_size < 0:
            raise ConfigError(f"fsl.batch_size = {self.batch_size}: must not be negative (0: all in one batch)")
        if self.lr is not None and self.lr <= 0:
            raise ConfigError(f"fsl.lr = {self.lr}: must be above 0")
        if self.server_weight is not None and not 0 <= self.server_weight <= 1:
            raise ConfigError(f"fsl.server_weight = {self.server_weight}: must lie between 0 and 1")
        if self.server_weight is not None and self.incremental:
            raise ConfigError("fsl.server_weight: only with incremental = false (server and clients start together)")

    def mean(self, delta: Tensor, at: ServerAt) -> Tensor:
        if self.server_weight is None or self.gamma == 0:
            return delta
        delta_0 = self._learn(at.x, at) - at.x
        return (1 - self.server_weight) * delta + self.server_weight * delta_0

    def after(self, x: Tensor, at: ServerAt) -> Tensor:
        if self.gamma == 0 or self.server_weight is not None:
            return x
        if self.incremental:
            return self._learn(x, at)
        return x + (self._learn(at.x, at) - at.x)

    def _learn(self, start: Tensor, at: ServerAt) -> Tensor:
        batch = at.server_samples if self._batch(at) == 0 else self._batch(at)
        per_epoch = math.ceil(at.server_samples / batch)
        epochs = self.epochs or math.ceil(at.mean_visits / at.server_samples)
        steps = self.steps or epochs * per_epoch
        eta_0 = self.lr or at.server_lr * at.lr * at.mean_steps / steps
        rate = self._gamma(at) * eta_0
        return at.learn(start, rate, epochs=None if self.steps else epochs, steps=self.steps, batch_size=batch)

    def _batch(self, at: ServerAt) -> int:
        return at.batch_size if self.batch_size is None else self.batch_size

    def _gamma(self, at: ServerAt) -> float:
        gamma = at.population * at.server_samples / at.samples if isinstance(self.gamma, str) else self.gamma
        schedule = Schedule(gamma, self.gamma_schedule, self.gamma_min, self.gamma_milestones, self.gamma_decay)
        return schedule.at(at.round, at.rounds)
