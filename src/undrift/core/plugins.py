"""Things that are named, not imported: ``package.module:name``, found when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from undrift.errors import ConfigError


def load(place: str, needed_by: str, extra: str | None = None) -> Any:
    """The object at ``package.module:name``; where a package of an extra is missing, says what to install."""
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if extra is None or missing == "undrift":
            raise
        raise ConfigError(f"{needed_by} needs {missing}: pip install 'undrift[{extra}]'") from None
