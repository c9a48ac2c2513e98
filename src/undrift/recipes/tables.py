"""Rows of numbers from evidence: *paper | ours | difference*, and what falls short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from undrift.recipes import metrics
from undrift.recipes.claims import label, shown
from undrift.recipes.evidence import MISSING, Evidence, difference, falls_short
from undrift.recipes.run import NO_SWEEP, TUNED
from undrift.recipes.run import shown as setting_shown

MARK = " †"
HEAD = ("algorithm", "setting", "metric", "paper", "ours", "difference")


def result_rows(evidence: Evidence) -> list[tuple[str, ...]]:
    """One row for each arm and metric."""
    return [
        (
            label(arm),
            setting_of(arm),
            metrics.title(metric),
            paper_number(metric, arm["paper"].get(metric)),
            shown(arm, metric),
            _difference(metric, difference(arm["paper"].get(metric), arm["ours"].get(metric, {}))),
        )
        for arm in evidence["arms"]
        for metric in evidence["metrics"]
    ]


def wide_rows(evidence: Evidence) -> list[tuple[str, ...]]:
    """A head and one row for each line that was run, with all its metrics; the paper's beside those it gives."""
    run = [arm for arm in evidence["arms"] if arm["runs"]]
    given = {m for m in evidence["metrics"] if any(arm["paper"].get(m) is not None for arm in run)}
    head = ["algorithm", "setting"]
    for metric in evidence["metrics"]:
        head += [metrics.title(metric), *(["paper"] if metric in given else [])]
    rows = [tuple(head)]
    for arm in run:
        row = [label(arm), setting_of(arm)]
        for metric in evidence["metrics"]:
            row += [shown(arm, metric) if (arm["ours"].get(metric) or {}).get("seeds") else "-"]
            row += [paper_number(metric, arm["paper"].get(metric))] if metric in given else []
        rows.append(tuple(row))
    return rows


def shortfalls(evidence: Evidence) -> Iterator[str]:
    """Every number that is worse than the paper's."""
    for arm in evidence["arms"]:
        for metric in evidence["metrics"]:
            paper = arm["paper"].get(metric)
            if falls_short(metric, paper, arm["ours"].get(metric, {})):
                against = paper_number(metric, paper)
                yield f"{label(arm)}, {metrics.title(metric)}: {shown(arm, metric)} against {against}"


def setting_of(arm: Mapping[str, Any]) -> str:
    """An arm's setting, marked where it was not chosen on validation data."""
    blind = arm["chosen"] in (MISSING, NO_SWEEP) or TUNED in arm["chosen"]
    return (setting_shown(arm["setting"]) or "-") + ("" if blind else MARK)


def paper_number(metric: str, number: Any) -> str:
    """A number of a paper as it stands in tables."""
    if number is None:
        return "-"
    return number if isinstance(number, str) else metrics.digits(metric, number)


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table; the first row is its head."""
    lines = ["| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows]
    return [lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]


def _difference(metric: str, gap: float | None) -> str:
    return "-" if gap is None else ("+" if gap > 0 else "") + metrics.digits(metric, gap)
