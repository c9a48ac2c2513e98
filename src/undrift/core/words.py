"""How a message points to the nearest word that would have been right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def close(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known word that is most like this one, if any is like it at all."""
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return found[0] if found else None


def unknown(key: str, word: str, known: Iterable[str]) -> str:
    """The message for a word that is none of those that a key takes."""
    choices = list(known)
    found = close(word, choices)
    hint = f"; did you mean {found!r}?" if found else ""
    return f"{key} = {word!r} is unknown{hint} (allowed: {', '.join(choices)})"


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint: the nearest known word, or what there is."""
    choices = list(known)
    found = close(word, choices, cutoff=0.5)
    return f"did you mean {found!r}?" if found else f"known: {', '.join(choices)}"
