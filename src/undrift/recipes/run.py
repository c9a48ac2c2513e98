"""Carry a recipe out: tune, run, evaluate; goes on where an earlier call stopped.

Every run has its own folder, ``OUT/ARM/SETTING/seedK`` (tuning runs: ``OUT/ARM/tuning/SETTING``). A folder whose run
is finished under the same configuration is used as it is; one that is unfinished is resumed. Where data lie and what
carries a run out (``data.root``, ``[engine]`` but for the precision, extra targets) is no part of that comparison; a
finished run that was evaluated more often than asked for is used too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from undrift.core.files import read_lines
from undrift.data.loading import data_root
from undrift.errors import ConfigError
from undrift.experiment.config import MeasureConfig, parse, read
from undrift.experiment.run_folder import dotted
from undrift.experiment.run_many import Planned, run_many
from undrift.recipes.recipe import Arm, Recipe, full_label, merged, nested
from undrift.recipes.scale import scaled
from undrift.recipes.standin import stand_in
from undrift.rounds.progress import rolling
from undrift.rules import named, parts_of

Watch = Callable[[int, str, str], None]
TUNED, INCOMPLETE = "tuned on validation data", "tuned on validation data as far as the tuning runs have been made"
GIVEN, UNTUNED, NO_SWEEP = "given by --fix", "the recipe's own value, NOT tuned in this result", "fixed, nothing swept"
TUNING_EVERY = 10
"""Tuning runs are evaluated this often at most."""


@dataclass(frozen=True)
class Options:
    """How to carry a recipe out."""

    out: Path
    scale: float = 1.0
    seeds: int | None = None
    rounds: int | None = None
    budget: float | None = None
    """Minutes; no run starts after them."""
    jobs: int = 1
    only: tuple[str, ...] = ()
    """Words in an arm's name; ``=NAME`` is the whole of it."""
    tune: bool = True
    fixed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Label of an arm (``*``: all) -> dotted keys that are given instead of being swept."""
    changed: Mapping[str, Any] = field(default_factory=dict)
    """Dotted keys laid over every arm's settings after scaling."""
    stand_in: bool = False
    """Use small made-up data of the same form where the data set is absent."""

    def labelled_scaled(self, recipe: Recipe) -> bool:
        """Whether the result differs from the paper's size."""
        return (
            recipe.size is not None
            or self.scale != 1.0
            or bool(self.changed)
            or self.rounds not in (None, recipe.base["train"]["rounds"])
        )


@dataclass
class Chosen:
    """An arm's setting and how it came about."""

    setting: dict[str, Any]
    how: str
    tried: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Outcome:
    """Where everything lies after a call."""

    recipe: Recipe
    options: Options
    chosen: dict[str, Chosen]
    runs: dict[str, list[Planned]]
    failures: dict[str, str]
    unmeasured: list[str]
    minutes: float = 0.0


def reproduce(recipe: Recipe, options: Options, watch: Watch | None = None) -> Outcome:
    """Tune, then make all runs: seed after seed, so that every arm has one seed before any has two."""
    started = time.monotonic()
    late = _deadline(started, options.budget)
    arms = arms_of(recipe, options)
    chosen, failures = _tune(recipe, options, _with_sources(recipe, arms), late, watch)
    seeds = range(options.seeds or recipe.seeds)
    runs = {
        label: [planned(recipe, options, arm, chosen[label].setting, seed) for seed in seeds]
        for label, arm in ((full_label(arm), arm) for arm in arms)
    }
    in_order = [run for same_seed in zip(*runs.values(), strict=True) for run in same_seed]
    failures |= _make(in_order, options, late, watch)
    return Outcome(recipe, options, chosen, runs, failures, unmeasured(recipe), (time.monotonic() - started) / 60)


def arms_of(recipe: Recipe, options: Options) -> list[Arm]:
    """The arms that were asked for."""
    if not options.only:
        return list(recipe.arms)
    arms = [arm for arm in recipe.arms if any(_asked_for(full_label(arm).lower(), word) for word in options.only)]
    if not arms:
        labels = "; ".join(full_label(arm) for arm in recipe.arms)
        raise ConfigError(f"--only {', '.join(options.only)}: no such arm in {recipe.name} (there are: {labels})")
    return arms


def _asked_for(label: str, word: str) -> bool:
    """``=NAME`` is that arm alone, any other word every arm with it in its name."""
    word = word.lower()
    return label == word[1:] if word.startswith("=") else word in label


def _with_sources(recipe: Recipe, arms: Sequence[Arm]) -> list[Arm]:
    """The arms and those whose tuning they rely on."""
    sources = [recipe.arm(arm.group, arm.tuned_with) for arm in arms if arm.tuned_with]
    more = {full_label(arm): arm for arm in sources if arm is not None and arm not in arms}
    return [*arms, *more.values()]


def settings_of(recipe: Recipe, options: Options, arm: Arm, setting: Mapping[str, Any]) -> dict[str, Any]:
    """An arm's complete settings, scaled."""
    known = {key: value for key, value in recipe.measure.items() if key in MeasureConfig.model_fields}
    full = merged(recipe.base, nested({**arm.settings, **setting}))
    full = merged(full, {"algorithm": {"name": arm.algorithm}, **({"measure": known} if known else {})})
    if "classes" in full["partition"] and full["partition"]["scheme"] != "classes":
        del full["partition"]["classes"]
    if full.get("server_data", {}).get("source") == "file":
        full["server_data"] = {key: full["server_data"][key] for key in ("source", "path")}
    if not _uses_server_data(arm.algorithm, full):
        full.pop("server_data", None)
    used = {"name", *parts_of(arm.algorithm)}
    full["algorithm"] = {key: value for key, value in full["algorithm"].items() if key in used}
    small = scaled(merged(full, nested(_data_only(options.changed))), options.scale, rounds=options.rounds)
    return merged(small, nested(options.changed))


def _data_only(changed: Mapping[str, Any]) -> dict[str, Any]:
    """What scaling has to know: how many samples and classes there are."""
    return {key: value for key, value in changed.items() if key in ("data.name", "data.split", "data.classes")}


def planned(
    recipe: Recipe, options: Options, arm: Arm, setting: Mapping[str, Any], seed: int, *, tuning: bool = False
) -> Planned:
    """One run of an arm."""
    settings = settings_of(recipe, options, arm, setting)
    settings["seed"] = seed
    if options.stand_in:
        settings = stand_in(settings, options.out)
    kind: tuple[str, ...] = ()
    if tuning:
        _shorten(settings, recipe)
        kind = ("tuning",)
    _find_server_file(settings)
    config = parse(settings)
    config.rule()
    parts = (_slug(full_label(arm)), *kind, shown(setting) or "as-given", f"seed{seed}")
    return Planned("/".join(parts), config, options.out.joinpath(*map(_slug, parts)))


def finished(run: Planned) -> bool:
    """Whether the folder holds this very run, finished."""
    if not (run.out / "summary.json").exists():
        return False
    same_run(run)
    return True


def same_run(run: Planned) -> None:
    """Refuse a folder that holds another run."""
    # Read as a configuration, so that keys that came later have their defaults.
    a, b = matters(read(run.out / "config.toml").complete()), matters(run.config.complete())
    if b["engine.precision"] == "auto":  # what the run there found faster
        b["engine.precision"] = a["engine.precision"]
    if b.pop("train.eval_every") % a["train.eval_every"] == 0:
        del a["train.eval_every"]
    if a != b:
        key = next(k for k in sorted(a.keys() | b.keys()) if a.get(k) != b.get(k))
        raise ConfigError(
            f"{run.out} holds another run: {key} is {a.get(key)!r} there and {b.get(key)!r} here; give another --out"
        )


def matters(settings: dict[str, Any]) -> dict[str, Any]:
    """What decides a result: neither the place of files nor what carries the run out."""
    flat = dotted(settings)
    for key in list(flat):
        if key in ("data.root", "measure.targets") or (key.startswith("engine.") and key != "engine.precision"):
            del flat[key]
        elif key in ("server_data.path", "data.path", "model.init"):
            flat[key] = Path(flat[key]).name
    return flat


def shown(setting: Mapping[str, Any]) -> str:
    """A setting in few words: ``lr=0.02,gamma=1``."""
    return ",".join(f"{key.rsplit('.', 1)[-1]}={value}" for key, value in setting.items())


def unmeasured(recipe: Recipe) -> list[str]:
    """Measures that the recipe asks for and this version does not have."""
    return sorted(key for key in recipe.measure if key not in MeasureConfig.model_fields)


def fixed_for(options: Options, arm: Arm) -> dict[str, Any]:
    """What ``--fix`` says about an arm."""
    return {**options.fixed.get("*", {}), **options.fixed.get(arm.label, {}), **options.fixed.get(full_label(arm), {})}


def _tune(
    recipe: Recipe, options: Options, arms: Sequence[Arm], late: Callable[[], bool], watch: Watch | None
) -> tuple[dict[str, Chosen], dict[str, str]]:
    chosen, axes = {}, {}
    for arm in arms:
        given = fixed_for(options, arm)
        label = full_label(arm)
        open_keys = {key: values for key, values in arm.sweep.items() if key not in given and len(values) > 1}
        start = {**{key: arm.settings[key] for key in arm.sweep if key in arm.settings}, **given}
        axes[label] = list(open_keys.items()) if options.tune and arm.tuned_with is None else []
        how = TUNED if axes[label] else GIVEN if given else NO_SWEEP if not arm.sweep else UNTUNED
        chosen[label] = Chosen(start, how)
    failures: dict[str, str] = {}
    for stage in range(max((len(a) for a in axes.values()), default=0)):
        tries = {full_label(arm): list(_tries(recipe, options, arm, chosen, axes, stage)) for arm in arms}
        failures |= _make([run for some in tries.values() for _, run in some], options, late, watch)
        for label, some in tries.items():
            _choose(chosen[label], some)
    for arm in arms:
        if not axes[full_label(arm)]:
            _recall(recipe, options, arm, chosen[full_label(arm)])
        _adopt(recipe, arm, chosen, fixed_for(options, arm))
    return chosen, failures


def _tries(
    recipe: Recipe,
    options: Options,
    arm: Arm,
    chosen: Mapping[str, Chosen],
    axes: Mapping[str, list[tuple[str, tuple[Any, ...]]]],
    stage: int,
) -> Iterator[tuple[dict[str, Any], Planned]]:
    label = full_label(arm)
    if stage < len(axes[label]):
        key, values = axes[label][stage]
        for value in values:
            setting = {**chosen[label].setting, key: value}
            yield setting, planned(recipe, options, arm, setting, recipe.tuning.seed, tuning=True)


def _choose(chosen: Chosen, tries: Sequence[tuple[dict[str, Any], Planned]]) -> None:
    scores = [(score_of(run), setting) for setting, run in tries]
    for score, setting in scores:
        entry = {"setting": setting, "validation_accuracy": score}
        if entry not in chosen.tried:
            chosen.tried.append(entry)
    done = [(score, setting) for score, setting in scores if score is not None]
    if done:
        chosen.setting = dict(max(done, key=lambda item: item[0])[1])
    if len(done) < len(scores):
        some = any(entry["validation_accuracy"] is not None for entry in chosen.tried)
        chosen.how = INCOMPLETE if some else UNTUNED


def _recall(recipe: Recipe, options: Options, arm: Arm, chosen: Chosen) -> None:
    """Where nothing is tuned now: tuning runs that were made before are told, though they decided nothing."""
    for key, values in arm.sweep.items():
        for value in values:
            setting = {**chosen.setting, key: value}
            entry = {
                "setting": setting,
                "validation_accuracy": score_of(
                    planned(recipe, options, arm, setting, recipe.tuning.seed, tuning=True)
                ),
            }
            if entry["validation_accuracy"] is not None and entry not in chosen.tried:
                chosen.tried.append(entry)


def score_of(run: Planned) -> float | None:
    """The rolling validation accuracy at the end, None while it is not there."""
    if not finished(run):
        return None
    return rolling(read_lines(run.out / "metrics.jsonl"), "validation_accuracy")[-1]


def _adopt(recipe: Recipe, arm: Arm, chosen: dict[str, Chosen], given: Mapping[str, Any]) -> None:
    if arm.tuned_with is None:
        return
    other = recipe.arm(arm.group, arm.tuned_with)
    source = chosen.get(full_label(other)) if other else None
    if source is not None:
        setting = {key: value for key, value in source.setting.items() if key in arm.sweep or key in given}
        mine = chosen[full_label(arm)]
        mine.setting, mine.how = {**mine.setting, **setting, **given}, f"that of {arm.tuned_with} ({source.how})"


def _make(runs: Sequence[Planned], options: Options, late: Callable[[], bool], watch: Watch | None) -> dict[str, str]:
    waiting = [run for run in runs if not finished(run)]
    return run_many(waiting, jobs=options.jobs, watch=watch, until=late) if waiting else {}


def _deadline(started: float, budget: float | None) -> Callable[[], bool]:
    return lambda: budget is not None and time.monotonic() - started >= 60 * budget


def _shorten(settings: dict[str, Any], recipe: Recipe) -> None:
    train, tuning = settings["train"], recipe.tuning
    train["rounds"] = min(train["rounds"], tuning.rounds or train["rounds"])
    train["eval_every"] = max(train.get("eval_every", 1), min(TUNING_EVERY, train["rounds"]))
    settings["data"]["validation"] = max(tuning.validation, settings["data"].get("validation", 0.0))
    settings.pop("measure", None)


def _uses_server_data(algorithm: str, settings: Mapping[str, Any]) -> bool:
    needed = any(link.needs_server_data for link in named(algorithm).links)
    return needed or bool(settings["train"].get("pretrain_epochs"))


def _find_server_file(settings: dict[str, Any]) -> None:
    """A server file is looked for under the root of the data sets."""
    server = settings.get("server_data", {})
    if server.get("path") and not Path(server["path"]).is_absolute():
        server["path"] = str((data_root(settings["data"].get("root")) / server["path"]).absolute())


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.,=+_-]+", "-", text).strip("-")
