"""The reference names every key and every parameter there is."""

from __future__ import annotations

import inspect
import typing
from pathlib import Path

import pytest
from pydantic import BaseModel

from undrift.experiment.config import Config
from undrift.rules import RULES

TEXT = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()


def keys() -> list[str]:
    found = []
    for section, field in Config.model_fields.items():
        options = (field.annotation, *typing.get_args(field.annotation))
        models = [o for o in options if isinstance(o, type) and issubclass(o, BaseModel)]
        found += [f"{section}.{key}" for model in models for key in model.model_fields]
    return found


@pytest.mark.parametrize("key", keys())
def test_every_key_is_documented(key: str) -> None:
    assert f"`{key}`" in TEXT


@pytest.mark.parametrize("name", [name for name in RULES if not name.startswith(("sfl", "minibatch"))])
def test_every_algorithm_and_its_parameters_are_documented(name: str) -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{name}`"))
    for parameter in inspect.signature(RULES[name]).parameters if name != "fedavg" else ():
        assert f"`{parameter}`" in row
