"""HTML in which nothing is markup unless it was made here: every text and attribute is escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any

VOID = ("input", "meta", "link", "br")
"""Elements without an end."""


class Html(str):
    """Text that is markup already."""


def escaped(value: object) -> Html:
    """A value as text of a page; what is markup already stays as it is."""
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """An element. ``class_`` is the class, ``data_x`` the attribute data-x; None and False leave an attribute out."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{name}{shown}>" if name in VOID else f"<{name}{shown}>{joined(children)}</{name}>")


def joined(children: Iterable[object]) -> Html:
    """Several pieces, one after the other."""
    return Html("".join(escaped(child) for child in children))


def table(head: Sequence[object], rows: Iterable[Sequence[object]], **attributes: object) -> Html:
    """A table that can be scrolled sideways where it is too wide."""
    body = [tag("tr", *(cell if _is_cell(cell) else tag("td", cell) for cell in row)) for row in rows]
    headings = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head)))
    return tag("div", tag("table", headings, tag("tbody", *body), **attributes), class_="scroll", tabindex=0)


def _is_cell(cell: object) -> bool:
    return isinstance(cell, Html) and cell.startswith(("<td", "<th"))


def as_script(value: Any) -> Html:
    """A value as JSON that cannot end the script element that it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Html(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))
