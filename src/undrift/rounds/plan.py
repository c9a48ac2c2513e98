"""The settings of a training run: every key, its bounds and its default, said once.

``[train]`` of a configuration, the arguments of ``simulate`` and the documentation follow from this declaration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from undrift.core.schedule import Kind, Schedule
from undrift.core.streams import stream
from undrift.data.federation import Federation, Indices
from undrift.errors import ConfigError

LARGEST = 2**31 - 1
"""The largest count that a setting may name."""

SMALLEST = 1e-37
"""A rate that is not larger is none in 32 bits."""


def fits_32_bits(value: float) -> float:
    """Refuse a number that is none, or nothing, in 32 bits."""
    if value and not SMALLEST < value < 1e37:
        raise ValueError("a 32-bit number cannot hold it")
    return value


Count = Annotated[int, Field(ge=1, le=LARGEST)]
NotNegative = Annotated[float, Field(ge=0), AfterValidator(fits_32_bits)]
Rate = Annotated[float, Field(gt=0), AfterValidator(fits_32_bits)]
Precision = Literal["fp32", "bf16", "auto"]


class Section(BaseModel):
    """A section of settings: unknown keys, other types and NaN are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Train(Section):
    """``[train]``: what is the same for every algorithm."""

    rounds: Annotated[int, Field(ge=0, le=LARGEST, description="Rounds of training.")] = 100
    cohort: Annotated[Count | None, Field(description="Clients drawn each round; absent: all.")] = None
    local_epochs: Annotated[Count, Field(description="Passes over its data that a client makes in a round.")] = 1
    local_steps: Annotated[Count | None, Field(description="Steps of a client in a round, instead of epochs.")] = None
    batch_size: Annotated[
        int, Field(ge=0, le=LARGEST, description="Samples in a step; 0: the whole local data set in one batch.")
    ] = 50
    lr: Annotated[Rate, Field(description="The clients' learning rate.")] = 0.01
    server_lr: Annotated[
        Rate | Literal["sqrt"], Field(description='Server rate; "sqrt": the square root of the cohort.')
    ] = 1.0
    weight_decay: Annotated[NotNegative, Field(description="Part of every gradient.")] = 0.0
    schedule: Annotated[Kind, Field(description="How the rate changes over the rounds.")] = "constant"
    lr_min: Annotated[Rate | None, Field(description="Where cosine ends; absent: 1 % of lr.")] = None
    milestones: Annotated[
        tuple[int, ...], Field(strict=False, description="multistep: rounds after which the rate decays.")
    ] = ()
    decay: Annotated[float, Field(gt=0, le=1, description="multistep: the factor at a milestone.")] = 0.1
    pretrain_epochs: Annotated[
        int, Field(ge=0, le=LARGEST, description="Epochs on the server's data before round 1.")
    ] = 0
    pretrain_lr: Annotated[Rate, Field(description="The rate of pre-training.")] = 0.01
    weighting: Annotated[
        Literal["samples", "uniform"], Field(description="Clients weigh by their samples, or all alike.")
    ] = "samples"
    eval_every: Annotated[Count, Field(description="Rounds from one evaluation to the next.")] = 1
    drop_last: Annotated[bool, Field(description="Leave out a last short batch, if it is not the only one.")] = False
    patience: Annotated[
        Count | None, Field(description="End the run after so many evaluations without a better monitored value.")
    ] = None


class Plan(Train):
    """All settings that decide what a run computes, besides data, model and algorithm."""

    augment: bool = False
    """Random flips and crops of images."""
    seed: Annotated[int, Field(ge=0, lt=2**63, description="Fixes everything that is drawn.")] = 0
    precision: Precision = "fp32"
    monitor: str | None = None
    """What is looked at; a leading ``-``: less is better. None: accuracy where it is counted, else the loss."""
    targets: Annotated[tuple[float, ...], Field(strict=False)] = ()

    def with_(self, **changes: Any) -> Plan:
        """The same plan with other values, checked."""
        return plan_of({**dict(self), **changes})

    @property
    def rates(self) -> Schedule:
        """The clients' rate over the rounds."""
        return Schedule(self.lr, self.schedule, self.lr_min, self.milestones, self.decay)

    def cohort_of(self, round: int, population: int) -> list[int]:
        """The clients drawn in a round: uniformly, without replacement, from the seed alone."""
        size = min(self.cohort or population, population)
        if size == population:
            return list(range(population))
        return [int(c) for c in stream(self.seed, "cohort", round).choice(population, size, replace=False)]

    def rate(self, round: int) -> float:
        """The clients' rate in force in a round."""
        return self.rates.at(round, self.rounds)

    def step_size(self, cohort: int) -> float:
        """The server rate for a cohort of this size."""
        return math.sqrt(cohort) if self.server_lr == "sqrt" else self.server_lr

    def steps(self, samples: int) -> int:
        """How many steps a client with so many samples makes in a round (``K``)."""
        if self.local_steps is not None:
            return self.local_steps
        return self.local_epochs * self.batches_a_pass(samples)

    def batches_a_pass(self, samples: int) -> int:
        """How many batches one pass over so many samples makes."""
        full, rest = divmod(samples, self.batch_size or samples)
        return full if full and (self.drop_last or not rest) else full + 1

    def visits(self, samples: int) -> int:
        """How many samples a client with so many visits in a round, repetitions counted."""
        size, count = self.batch_size or samples, self.batches_a_pass(samples)
        a_pass = min(samples, count * size)
        if self.local_steps is None:
            return self.local_epochs * a_pass
        passes, rest = divmod(self.local_steps, count)
        return passes * a_pass + rest * size

    def weight(self, samples: int) -> float:
        """A client's weight before normalisation."""
        return float(samples) if self.weighting == "samples" else 1.0

    def total_weight(self, federation: Federation) -> float:
        """The sum of all clients' weights."""
        return float(federation.sizes.sum()) if self.weighting == "samples" else float(len(federation))

    def order(self, samples: int, round: int, client: int) -> Iterator[Indices]:
        """Positions of each of a client's batches in a round."""
        rng = stream(self.seed, "order", round, client)
        return batches(samples, self.batch_size, self.local_epochs, self.local_steps, rng, drop_last=self.drop_last)


def plan_of(settings: Mapping[str, Any]) -> Plan:
    """A plan of these settings; an error names the key, the value and what is allowed."""
    try:
        return Plan.model_validate({key: _plain(value) for key, value in settings.items()})
    except ValidationError as error:
        raise ConfigError(explain(error, "train.")) from None


def _plain(value: Any) -> Any:
    """NumPy's numbers, and whole numbers in place of others, are as good as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def explain(error: ValidationError, prefix: str = "") -> str:
    """What pydantic found wrong, as ``train.lr = -1: input should be greater than 0``."""
    first = error.errors()[0]
    branches = [e for e in error.errors() if e["loc"][:2] == first["loc"][:2]]
    words = [str(part) for part in first["loc"] if isinstance(part, str) and "[" not in part]
    if len(words) > 1 and words[-1] in ("float", "int", "str", "literal", "list", "tuple"):
        words.pop()
    key = prefix + ".".join(words)
    found = {str(e["msg"]).removeprefix("Value error, ") for e in branches}
    messages = sorted(message[0].lower() + message[1:] for message in found)
    return f"{key} = {shown(first['input'])}: {' or '.join(messages)}"


def shown(value: Any) -> str:
    """A value in a message: short."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, lists in lists in lists
        text = f"{type(value).__name__} too long to show"
    return text if len(text) < 60 else text[:57] + "..."


def batches(
    samples: int,
    batch_size: int,
    epochs: int,
    steps: int | None,
    rng: np.random.Generator,
    *,
    drop_last: bool = False,
) -> Iterator[Indices]:
    """Positions of each batch: every epoch visits every sample once in a fresh order, the last short batch too.

    ``drop_last`` leaves that one out, unless it is the only one. With ``steps`` so many batches are made, reshuffled
    whenever all samples have been visited.
    """
    size = batch_size or samples
    end = samples - samples % size if drop_last and samples > size else samples
    remaining = steps if steps is not None else epochs * math.ceil(end / size)
    while remaining > 0:
        order = rng.permutation(samples)
        for start in range(0, end, size):
            yield order[start : start + size]
            remaining -= 1
            if not remaining:
                return
