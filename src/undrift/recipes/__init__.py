"""The papers' experiments: one recipe for each table and figure that can be run, and what carries them out."""

from __future__ import annotations

from undrift.errors import ConfigError
from undrift.recipes import fsl
from undrift.recipes.recipe import Arm, Recipe, Tuning

__all__ = ["RECIPES", "Arm", "Recipe", "Tuning", "recipe_of"]

RECIPES: dict[str, Recipe] = {recipe.name: recipe for module in (fsl,) for recipe in module.RECIPES}


def recipe_of(name: str) -> Recipe:
    """The recipe of that name."""
    from undrift.config import nearest

    if name not in RECIPES:
        raise ConfigError(f"no recipe {name!r}: {nearest(name, RECIPES)}")
    return RECIPES[name]
