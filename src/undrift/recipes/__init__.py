"""The papers' experiments: one recipe for each table and figure that can be run, and what carries them out."""

from __future__ import annotations

from undrift.core.words import nearest
from undrift.errors import ConfigError
from undrift.recipes import beyond, beyond_rules, fedadc, fedpvr, fsl, fsl_conference, minibatch_sfl
from undrift.recipes.recipe import Arm, Recipe, Tuning

__all__ = ["RECIPES", "Arm", "Recipe", "Tuning", "recipe_of"]

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for paper in (fsl, beyond, beyond_rules, fsl_conference, fedpvr, fedadc, minibatch_sfl)
    for recipe in paper.RECIPES
}


def recipe_of(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        raise ConfigError(f"no recipe {name!r}: {nearest(name, RECIPES)}")
    return RECIPES[name]
