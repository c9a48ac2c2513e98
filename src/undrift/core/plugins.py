"""Things that are named, not imported: ``package.module:name``, or a short name that an installed package offers.

An installed package offers short names by the entry point group ``undrift``::

    [project.entry-points.undrift]
    my-net = "my_package.nets:MyNet"
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from undrift.core.trouble import describe
from undrift.core.words import nearest
from undrift.errors import ConfigError

GROUP = "undrift"
_own: set[str] = set()


def load(place: str, needed_by: str, extra: str | None = None) -> Any:
    """A part of undrift at ``package.module:name``; where a package of an extra is missing, says what to install."""
    module, _, name = place.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if extra is None or missing == "undrift":
            raise
        raise ConfigError(f"{needed_by} needs {missing}: pip install 'undrift[{extra}]'") from None


def place_of(name: str) -> str | None:
    """``package.module:name`` for such a name, or for a short name that an installed package offers; else None."""
    if ":" in name:
        return name
    return next((point.value for point in entry_points(group=GROUP) if point.name == name), None)


def places_in(settings: Any) -> Iterator[str]:
    """All texts in settings that may name something as ``package.module:name``."""
    if isinstance(settings, dict):
        settings = list(settings.values())
    if isinstance(settings, list):
        for value in settings:
            yield from places_in(value)
    elif isinstance(settings, str):
        yield from (part for part in settings.split("+") if ":" in part)


def own(name: str, key: str, known: Collection[str] = ()) -> Any:
    """A user's own object by its name; ``key`` says in messages who wants it, ``known`` what else it takes."""
    place = place_of(name)
    if place is None:
        raise ConfigError(f"{key} = {name!r}: {nearest(name, known)} (your own: 'package.module:name')")
    module, _, attribute = place.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{key} = {name!r}: no module {error.name!r} {_looked()}") from None
    except Exception as error:
        raise ConfigError(f"{key} = {name!r}: importing {module!r} failed: {describe(error)}") from None
    _own.add(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [word for word in vars(found) if not word.startswith("_")] if hasattr(found, "__dict__") else []
            raise ConfigError(f"{key} = {name!r}: {module!r} has no {part!r}; {nearest(part, names)}")
        found = getattr(found, part)
    return found


def called(name: str, key: str, arguments: dict[str, Any], known: Collection[str] = ()) -> Any:
    """What a user's own function or class gives for these arguments."""
    maker = own(name, key, known)
    try:
        return maker(**arguments)
    except ConfigError:
        raise
    except Exception as error:
        given = ", ".join(f"{word}={value!r}" for word, value in arguments.items())
        raise ConfigError(f"{key} = {name!r}: {name}({given}) failed: {describe(error)}") from None


def look_in(folder: str | Path) -> None:
    """Modules are also looked for in this folder, after everything else that is installed."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def own_modules() -> list[Any]:
    """Modules that users' own objects came from; elsewhere they may be missing, so they travel by value."""
    return [sys.modules[name] for name in sorted(_own) if name in sys.modules]


def _looked() -> str:
    return f"on this machine (looked among installed packages and in {', '.join(sys.path[-2:])})"
