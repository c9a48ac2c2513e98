"""Text from elsewhere, as it may be shown: one line, no control characters."""

from __future__ import annotations


def printable(text: str, most: int = 2000) -> str:
    """The text without what would act on a terminal: control characters are written out, the end may be cut."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:most])
    return shown + ("…" if len(text) > most else "")
