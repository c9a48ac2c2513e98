"""One HTML file with everything in it: text and tables as markup, charts drawn by Plotly, which lies in the file too.

Plotly, because its JavaScript ships inside its Python package, it draws vectors (sharp in print, found in the page's
tree by tests), and heat maps, bands and hover are part of it. Compressed it takes 2 MB of the file.
"""

from __future__ import annotations

import base64
import functools
import gzip
import time
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from undrift.core.files import write_atomic
from undrift.core.version import VERSION
from undrift.errors import InputError
from undrift.report import sections
from undrift.report.charts import chart_data
from undrift.report.findings import diagnosis_section, evidence_section, evidence_verdict
from undrift.report.html import Html, as_script, escaped, joined, tag
from undrift.report.numbers import verdict
from undrift.report.story import Story, collect

POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; connect-src "
"""What a page may load: nothing from anywhere but itself."""


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of some folders to one file."""
    write_atomic(out, render(collect(folders)))
    return out


def render(story: Story, *, live: bool = False) -> str:
    """The whole page; a live one asks its server for news."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY + ("'self'" if live else "'none'")),
        tag("link", rel="icon", href="data:,"),
        tag("title", f"{story.title} · undrift"),
        tag("style", Html(_asset("report.css"))),
    )
    scripts = [
        tag("script", as_script(chart_data(story)), type="application/json", id="data"),
        tag("script", Html(_plotly()), type="application/octet-stream", id="plotly"),
        tag("script", Html(_asset("report.js"))),
    ]
    main = tag("main", content(story), id="content")
    body = tag("body", _top(story, live), main, _foot(), *scripts, data_live="yes" if live else None)
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def content(story: Story) -> Html:
    """What the page tells, from what a reader wants first to what few want."""
    groups = story.groups
    parts: list[Html | None] = [_verdict(story)]
    parts += [evidence_section(found, index) for index, found in enumerate(story.evidence)]
    parts += [diagnosis_section(found, index) for index, found in enumerate(story.diagnoses)]
    if groups:
        if len(parts) > 1:
            parts.append(sections.section("runs", "The runs", sections.final_numbers(groups)))
        parts += [sections.progress_section(groups)]
        parts += [sections.federation_section(story) if story.held else None]
        parts += [sections.drift_section(groups), sections.clients_section(story)]
        if any(group_coverage(group) for group in groups):
            hint = "Further up and to the left is better."
            parts.append(sections.section("sets", "Prediction sets", sections.chart("coverage"), hint=hint))
        parts += [sections.lost_section(groups), sections.configuration_section(groups)]
    parts += [sections.reproduce_section(story), sections.remarks_section(story.remarks)]
    return joined(part for part in parts if part is not None)


def group_coverage(group: Any) -> bool:
    """Whether a group has prediction sets."""
    return any(run.conformal for run in group.runs)


def _verdict(story: Story) -> Html:
    said = [evidence_verdict(found) for found in story.evidence]
    said += [str(found.get("verdict", "")) for found in story.diagnoses]
    parts: list[object] = [tag("p", text, class_="lead") for text in said]
    if not said:  # a race or a reproduction has a verdict of its own
        first, *more = verdict(story.groups)
        parts += [tag("p", first, class_="lead"), tag("p", " ".join(more)) if more else ""]
        parts.append(sections.final_numbers(story.groups))
    return tag("section", *parts, id="verdict")


def _top(story: Story, live: bool) -> Html:
    runs = sum(len(group.runs) for group in story.groups)
    told = f"{story.kind} · {runs} run{'s' * (runs != 1)} · " if runs else f"{story.kind} · "
    made = tag("time", time.strftime("%Y-%m-%d %H:%M"))
    status = tag("span", "live", class_="badge", id="live") if live else ""
    theme = tag("button", "dark / light", id="theme", type="button")
    title = tag("div", tag("h1", story.title), tag("p", told, made, " ", status, class_="hint"))
    chips = tag("div", class_="chips", id="chips", role="group", aria_label="algorithms shown")
    return joined([tag("header", title, theme), chips])


def _foot() -> Html:
    words = f"undrift {VERSION}. This file holds everything that it shows and loads nothing."
    return tag("footer", words, tag("noscript", " Charts need JavaScript."))


def _asset(name: str) -> str:
    return (files("undrift.report") / "assets" / name).read_text(encoding="utf-8")


@functools.cache
def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise InputError("reports need plotly: install undrift[report]") from None
    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()


def live_state(story: Story) -> dict[str, Any]:
    """What changes in a live page."""
    return {"content": str(content(story)), "data": chart_data(story), "title": str(escaped(story.title))}
