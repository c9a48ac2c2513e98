"""The settings of a training run that are the same for every algorithm."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from undrift.errors import ConfigError
from undrift.federation import Federation, Indices
from undrift.schedule import Kind, Schedule
from undrift.streams import stream


@dataclass(frozen=True)
class Plan:
    """How clients are drawn, how they train, how they are weighted."""

    rounds: int
    lr: Schedule
    cohort: int | None = None
    local_epochs: int = 1
    local_steps: int | None = None
    batch_size: int = 32
    server_lr: float | Literal["sqrt"] = 1.0
    weight_decay: float = 0.0
    weighting: Literal["samples", "uniform"] = "samples"
    eval_every: int = 1
    pretrain_epochs: int = 0
    pretrain_lr: float = 0.01
    augment: bool = False
    seed: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    targets: tuple[float, ...] = field(default=())

    def __post_init__(self) -> None:
        for key, value, least in (
            ("rounds", self.rounds, 0), ("cohort", self.cohort, 1), ("local_epochs", self.local_epochs, 1),
            ("local_steps", self.local_steps, 1), ("batch_size", self.batch_size, 0),
            ("eval_every", self.eval_every, 1), ("pretrain_epochs", self.pretrain_epochs, 0),
            ("weight_decay", self.weight_decay, 0),
        ):  # fmt: skip
            if value is not None and not value >= least:
                raise ConfigError(f"train.{key} = {value}: must be at least {least}")
        rates = {"lr": self.lr.value, "lr_min": self.lr.minimum, "decay": self.lr.decay, "server_lr": self.server_lr,
                 "pretrain_lr": self.pretrain_lr}  # fmt: skip
        for key, rate in rates.items():
            if rate not in (None, "sqrt") and not (isinstance(rate, int | float) and 0 < rate < math.inf):
                raise ConfigError(f"train.{key} = {rate!r}: must be a number above 0")
        words = {"schedule": (self.lr.kind, get_args(Kind)), "weighting": (self.weighting, ("samples", "uniform"))}
        for key, (word, allowed) in words.items():
            if word not in allowed:
                raise ConfigError(f"train.{key} = {word!r}: one of {', '.join(allowed)} is allowed")
        if self.precision not in ("fp32", "bf16"):
            raise ConfigError(f"engine.precision = {self.precision!r}: fp32 or bf16 is allowed")
        if self.seed < 0:
            raise ConfigError(f"seed = {self.seed}: must be at least 0")

    def cohort_of(self, round: int, population: int) -> list[int]:
        """The clients drawn in a round: uniformly, without replacement, from the seed alone."""
        size = min(self.cohort or population, population)
        if size == population:
            return list(range(population))
        return [int(c) for c in stream(self.seed, "cohort", round).choice(population, size, replace=False)]

    def rate(self, round: int) -> float:
        """The clients' rate in force in a round."""
        return self.lr.at(round, self.rounds)

    def step_size(self, cohort: int) -> float:
        """The server rate for a cohort of this size."""
        return math.sqrt(cohort) if self.server_lr == "sqrt" else self.server_lr

    def steps(self, samples: int) -> int:
        """How many steps a client with so many samples makes in a round (``K``)."""
        if self.local_steps is not None:
            return self.local_steps
        return self.local_epochs * math.ceil(samples / (self.batch_size or samples))

    def visits(self, samples: int) -> int:
        """How many samples a client with so many visits in a round, repetitions counted."""
        if self.local_steps is None:
            return self.local_epochs * samples
        size = self.batch_size or samples
        walks, rest = divmod(self.local_steps, math.ceil(samples / size))
        return walks * samples + rest * size

    def weight(self, samples: int) -> float:
        """A client's weight before normalisation."""
        return float(samples) if self.weighting == "samples" else 1.0

    def total_weight(self, federation: Federation) -> float:
        """The sum of all clients' weights."""
        return float(federation.sizes.sum()) if self.weighting == "samples" else float(len(federation))


def batches(
    samples: int, batch_size: int, epochs: int, steps: int | None, rng: np.random.Generator
) -> Iterator[Indices]:
    """Positions of each batch: every epoch visits every sample once in a fresh order, the last short batch too.

    With ``steps`` the walk goes on, reshuffled whenever it is exhausted, until so many batches are made.
    """
    size = batch_size or samples
    remaining = steps if steps is not None else epochs * math.ceil(samples / size)
    while remaining > 0:
        order = rng.permutation(samples)
        for start in range(0, samples, size):
            yield order[start : start + size]
            remaining -= 1
            if not remaining:
                return


def grouped(order: Iterator[Indices], samples: int) -> Iterator[list[Indices]]:
    """Batches in groups of at most so many samples, but at least one batch."""
    group: list[Indices] = []
    held = 0
    for positions in order:
        if group and held + len(positions) > samples:
            yield group
            group, held = [], 0
        group.append(positions)
        held += len(positions)
    if group:
        yield group
