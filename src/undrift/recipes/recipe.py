"""What a recipe is: one table or figure of a paper as data, settings, algorithms, a sweep, and the paper's numbers.

Base settings are written as in TOML; an arm's settings are dotted keys on top of them. A metric is a name:

- ``rounds_to:0.5``, ``rounds_to_raw:0.66``: first round at that accuracy, rolling or raw;
- ``rolling_accuracy``, ``final_accuracy``, ``rise_time``, ``final_loss``: at the end of the run;
- ``tail:5``: mean accuracy of the last five evaluations, for short runs that go up and down;
- ``late:ARM``: rounds to an accuracy that another arm of the group reaches late, divided by that arm's own;
- ``megabytes``: all that was sent, ``megabytes_up``: up only; ``models_a_round``: all by client and round, in models;
- ``ratio:ARM:METRIC``, ``gain:ARM:METRIC``: that metric divided by, or minus, another arm's of the same group;
- ``last:KEY``, ``mean:KEY``: a measured quantity of ``metrics.jsonl`` (``drift.model``), its last value or its mean;
- ``conformal:coverage``, ``conformal:size``: of prediction sets of level .9 (RAPS).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from undrift.errors import ConfigError
from undrift.recipes.claims import Claim

Settings = Mapping[str, Any]
Number = int | float | str | None
"""A paper's number; a string such as ``">100"`` is a bound; None: the paper has a curve only."""


@dataclass(frozen=True)
class Arm:
    """One line of a table, one curve of a figure."""

    label: str
    algorithm: str
    settings: Settings = field(default_factory=dict)
    """Dotted keys; a swept key's value here is used when the sweep is skipped."""
    sweep: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    paper: Mapping[str, Number] = field(default_factory=dict)
    group: str = ""
    """Arms of one group share a federation; ratios are taken within it."""
    tuned_with: str | None = None
    """The arm (of the same group) whose chosen setting is used here too."""


@dataclass(frozen=True)
class Tuning:
    """How a sweep's best setting is chosen: on validation data, with one seed, never on the test set.

    Keys are tried one after another in the order of the sweep, the best value kept for the next key. The best is
    the highest rolling validation accuracy after ``rounds`` rounds (all rounds if None) of runs that hold out
    ``validation`` of every client's data; the runs that are reported hold out nothing for it.
    """

    rounds: int | None = None
    validation: float = 0.05
    seed: int = 0


@dataclass(frozen=True)
class Size:
    """A named size other than the paper's: what it changes in every arm, and why that is enough (or all there is)."""

    reason: str
    settings: Settings = field(default_factory=dict)
    """Dotted keys laid over every arm's."""
    only: tuple[str, ...] = ()
    """Arms whose full label has one of these in it; empty: all."""
    sweep: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Other values for keys that an arm sweeps."""
    tuning: Tuning | None = None
    seeds: int | None = None
    metrics: tuple[str, ...] | None = None
    measure: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Recipe:
    """One table or figure."""

    name: str
    paper: str
    where: str
    title: str
    base: Mapping[str, Any]
    arms: tuple[Arm, ...]
    metrics: tuple[str, ...]
    seeds: int = 3
    tuning: Tuning = Tuning()
    notes: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    """What the paper says of it, for a result to be held against."""
    measure: Mapping[str, Any] = field(default_factory=dict)
    """``[measure]`` settings; those that this version does not know are left out, and the result says so."""

    sizes: Mapping[str, Size] = field(default_factory=dict)
    """Sizes that can be asked for by name, beside the paper's own."""
    size: str | None = None
    """Which of them this is; None: the paper's."""

    def arm(self, group: str, label: str) -> Arm | None:
        """The arm of that name."""
        return next((arm for arm in self.arms if (arm.group, arm.label) == (group, label)), None)


def sized(recipe: Recipe, name: str) -> Recipe:
    """The recipe at one of its named sizes."""
    if name not in recipe.sizes:
        known = ", ".join(recipe.sizes) or "none but the paper's own"
        raise ConfigError(f"--size {name}: {recipe.name} has no such size (there are: {known})")
    size = recipe.sizes[name]
    arms = [arm for arm in recipe.arms if not size.only or any(word in full_label(arm) for word in size.only)]
    return replace(
        recipe,
        arms=tuple(_sized_arm(arm, size) for arm in arms),
        tuning=size.tuning or recipe.tuning,
        seeds=size.seeds or recipe.seeds,
        metrics=size.metrics or recipe.metrics,
        measure=recipe.measure if size.measure is None else size.measure,
        size=name,
    )


def _sized_arm(arm: Arm, size: Size) -> Arm:
    sweep = {key: size.sweep.get(key, values) for key, values in arm.sweep.items()}
    return replace(arm, settings={**arm.settings, **size.settings}, sweep=sweep)


def full_label(arm: Arm) -> str:
    """Group and label in one."""
    return f"{arm.group}: {arm.label}" if arm.group else arm.label


def nested(flat: Settings) -> dict[str, Any]:
    """Dotted keys as nested sections."""
    out: dict[str, Any] = {}
    for key, value in flat.items():
        *path, last = key.split(".")
        section = out
        for name in path:
            section = section.setdefault(name, {})
        section[last] = value
    return out


def merged(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with others laid over them."""
    out = {key: dict(value) if isinstance(value, Mapping) else value for key, value in base.items()}
    for key, value in more.items():
        old = out.get(key)
        out[key] = merged(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
    return out
