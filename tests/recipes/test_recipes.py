"""Every recipe is well formed and runs at the smallest scale, on made-up data of the right form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from undrift.errors import ConfigError
from undrift.recipes import RECIPES, Arm, Recipe, beyond_rules, recipe_of
from undrift.recipes.claims import Ahead, Reaches, Smaller
from undrift.recipes.estimate import planned_runs, seconds_of
from undrift.recipes.evidence import evidence_of, missing_runs
from undrift.recipes.metrics import title
from undrift.recipes.pages import section
from undrift.recipes.recipe import Size, full_label, sized
from undrift.recipes.run import Options, reproduce
from undrift.rules.accounting import epsilon as accountant

TINY = {"train.rounds": 1, "train.cohort": 2, "train.local_steps": 1, "train.batch_size": 4, "train.eval_every": 1}


def few_arms(recipe: Recipe) -> Recipe:
    """The first arm of two algorithms."""
    first = {arm.algorithm: arm for arm in reversed(recipe.arms)}
    chosen = list(first.values())[-2:]
    return replace(recipe, arms=tuple(replace(arm, tuned_with=None) for arm in chosen))


def narrow(arm: Arm) -> Arm:
    """A VGG-11 with few channels."""
    return replace(arm, settings={**arm.settings, "model.name": "vgg11", "model.width": 0.05})


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_runs_at_the_smallest_scale(name: str, tmp_path: Path) -> None:
    recipe = few_arms(recipe_of(name))
    changed: dict[str, Any] = TINY | ({"measure.cka_samples": 8} if "cka" in recipe.measure else {})
    if recipe.base["model"]["name"] == "resnet18":
        changed |= {"model.width": 0.1}
    if any(arm.settings.get("model.name") == "vgg11" for arm in recipe.arms):
        recipe = replace(recipe, arms=tuple(narrow(arm) for arm in recipe.arms))
    options = Options(tmp_path / "runs", scale=0.0001, seeds=1, tune=False, jobs=1, changed=changed, stand_in=True)
    outcome = reproduce(recipe, options)
    assert not outcome.failures
    evidence = evidence_of(outcome, "undrift reproduce")
    assert evidence["scaled"]
    assert evidence["stand_in"]
    assert not missing_runs(evidence)
    assert "made-up data" in section(evidence, drawn=False)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_well_formed(name: str, tmp_path: Path) -> None:
    recipe = recipe_of(name)
    labels = [full_label(arm) for arm in recipe.arms]
    assert len(set(labels)) == len(labels)
    runs = planned_runs(recipe, Options(tmp_path, seeds=1))
    assert len(runs) >= len(recipe.arms)
    for arm in recipe.arms:
        assert set(arm.paper) <= set(recipe.metrics), arm.label
        assert set(arm.sweep) <= set(arm.settings), f"{arm.label}: a swept key needs a value for when it is not swept"
        assert arm.tuned_with is None or recipe.arm(arm.group, arm.tuned_with)
    assert all(title(metric) for metric in recipe.metrics)
    known = {*recipe.metrics, *(metric for size in recipe.sizes.values() for metric in size.metrics or ())}
    names = {name for arm in recipe.arms for name in (arm.label, full_label(arm))}
    for check in (check for claim in recipe.claims for check in claim.checks):
        said = {check.metric} | ({check.than} if isinstance(check, Smaller) else set())
        assert said <= known, f"{recipe.name} has no {said}"
        others = check.than if isinstance(check, Ahead) else ()
        assert {*(check.arms if isinstance(check, Reaches) else (check.arm,)), *others} <= names


def test_all_that_was_asked_for_is_there() -> None:
    wanted = {
        "FSL (journal)": ["table I", *(f"figure {n}" for n in (1, 2, 5, 6, 7, 8, 9, 10, 11))],
        "FSL (conference)": [f"figure {n}" for n in range(1, 7)],
        "FedPVR": ["table 2", "table 3", *(f"figure {n}" for n in range(1, 6))],
        "FedADC": ["figure 1", "figure 2"],
    }
    for paper, places in wanted.items():
        assert {r.where for r in RECIPES.values() if r.paper == paper} == set(places)
    split = " ".join(r.where for r in RECIPES.values() if r.paper == "MiniBatch-SFL")
    numbers = {int(word) for word in split.replace(",", " ").split() if word.isdigit()}
    assert numbers == set(range(2, 15))


def test_an_unknown_recipe_is_refused_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="fsl-table-1"):
        recipe_of("fsl-table-l")


def test_estimate_grows_with_the_rounds(tmp_path: Path) -> None:
    recipe = recipe_of("fsl-table-1")
    short, long = (
        planned_runs(recipe, Options(tmp_path, rounds=rounds, seeds=1, tune=False))[0].config for rounds in (10, 100)
    )
    assert 0 < seconds_of(short) < seconds_of(long)


SIZES = [(recipe.name, size) for recipe in RECIPES.values() for size in recipe.sizes]


@pytest.mark.parametrize(("name", "size"), SIZES)
def test_named_size_is_well_formed(name: str, size: str, tmp_path: Path) -> None:
    recipe = sized(recipe_of(name), size)
    assert recipe.size == size
    assert recipe.arms
    assert recipe.sizes[size].reason
    for run in planned_runs(recipe, Options(tmp_path, seeds=1)):
        for key, value in recipe.sizes[size].settings.items():
            section, _, field = key.partition(".")
            if key != "train.rounds" or "/tuning/" not in run.name:
                assert run.config.complete()[section][field] == value, run.name


def test_a_size_changes_settings_sweep_and_arms() -> None:
    arms = (Arm("A", "fedavg", {"train.lr": 0.1}, {"train.lr": (0.1, 0.2)}), Arm("B", "fedavg"))
    size = Size("quick", {"train.rounds": 3}, only=("A",), sweep={"train.lr": (0.5, 0.6)}, seeds=1)
    recipe = Recipe("r", "p", "w", "t", {"train": {"rounds": 9}}, arms, ("final_accuracy",), sizes={"small": size})
    small = sized(recipe, "small")
    assert [arm.label for arm in small.arms] == ["A"]
    assert small.arms[0].settings == {"train.lr": 0.1, "train.rounds": 3}
    assert small.arms[0].sweep == {"train.lr": (0.5, 0.6)}
    assert (small.seeds, small.size) == (1, "small")
    with pytest.raises(ConfigError, match="no such size"):
        sized(recipe, "tiny")


def test_every_private_arm_spends_the_epsilon_of_its_group() -> None:
    pytest.importorskip("dp_accounting")
    for epsilon, noise in beyond_rules.NOISE.items():
        base = beyond_rules.PRIVACY.base
        q = base["train"]["cohort"] / base["partition"]["clients"]
        spent = accountant(q, noise, beyond_rules.DELTA, base["train"]["rounds"])
        assert 0.99 * epsilon < spent <= epsilon
        arms = [arm for arm in beyond_rules.PRIVACY.arms if arm.group == f"epsilon {epsilon}"]
        assert {arm.settings["algorithm.dp.noise"] for arm in arms} == {noise}
