"""The parts of a report about a diagnosis and about reproduced results."""

from __future__ import annotations

from typing import Any

from undrift.recipes.evidence import difference, falls_short
from undrift.recipes.tables import HEAD, result_rows
from undrift.report.html import Html, joined, table, tag
from undrift.report.sections import chart, section

MISSING = "missing"


def diagnosis_section(found: dict[str, Any], index: int) -> Html:
    """What the probe found and what follows from it."""
    advice = [
        tag("li", tag("b", one["name"]), _settings(one.get("parameters") or {}), ": ", one.get("reason") or "", ".")
        for one in found.get("recommended", [])
    ]
    against = [tag("li", tag("b", what), ": ", why, ".") for what, why in (found.get("against") or {}).items()]
    parts: list[object] = [tag("ol", *advice)]
    if against:
        parts += [tag("h3", "Not recommended"), tag("ul", *against)]
    parts.append(tag("div", chart("diagnosis-layers", index), chart("diagnosis-costs", index), class_="grid"))
    if found.get("race"):
        parts += [tag("h3", "Race"), _race(found["race"])]
    return section(f"diagnosis{index or ''}", "Recommended for this federation", *parts, hint=_measured(found))


def _settings(parameters: dict[str, dict[str, Any]]) -> str:
    shown = [f"{part}.{key} = {value}" for part, own in parameters.items() for key, value in own.items()]
    return f" ({', '.join(shown)})" if shown else ""


def _measured(found: dict[str, Any]) -> str:
    seen = found.get("findings") or {}
    if seen.get("excess") is None:
        return ""
    return (
        f"Measured: {seen.get('clients')} clients, {seen.get('cohort')} of them in a round; their gradients differ by "
        f"{seen['excess']:.2f} times ‖∇F‖² more than chance explains (below 0.5 it hardly matters, above 4 is strong)."
    )


def _race(race: list[dict[str, Any]]) -> Html:
    head = ("algorithm", "lr", "rounds", "validation (decides)", "test (for information)")
    keys = ("algorithm", "lr", "rounds", "validation_rolling_accuracy", "test_accuracy")
    rows = [
        [f"{one[k]:.4f}" if k.endswith("accuracy") and one[k] is not None else one[k] for k in keys] for one in race
    ]
    return table(head, rows, class_="numbers")


def evidence_section(found: dict[str, Any], index: int) -> Html:
    """A paper's numbers beside ours; what was not run is one sentence."""
    rows = [row for row in result_rows(found) if row[4] != MISSING]
    parts: list[object] = [tag("p", badge(found), found["title"])]
    parts.append(table(HEAD, rows, class_="numbers") if rows else tag("p", "No run has been made yet."))
    if found.get("missing"):
        parts.append(tag("p", f"{len(found['missing'])} runs have not been made."))
    if found.get("failures"):
        failed = [tag("li", tag("b", run), ": ", why) for run, why in found["failures"].items()]
        parts += [tag("h3", "Failed"), tag("ul", *failed)]
    parts.append(chart("evidence", index))
    if found.get("notes"):
        parts.append(tag("ul", *(tag("li", note) for note in found["notes"])))
    title = f"{found['paper']}, {found['where']}"
    return section(f"result-{index}", title, *parts, hint=", ".join(found.get("scaling") or ()))


def badge(found: dict[str, Any]) -> Html:
    """A mark on what is not the paper's own experiment."""
    marks = [word for key, word in (("stand_in", "made-up data"), ("scaled", "scaled")) if found.get(key)]
    return joined(tag("span", mark, class_="badge") for mark in marks)


def evidence_verdict(found: dict[str, Any]) -> str:
    """How many of the paper's numbers are reached."""
    numbers = [
        (metric, arm["paper"].get(metric), arm["ours"].get(metric, {}))
        for arm in found["arms"]
        for metric in found["metrics"]
    ]
    told = [falls_short(*one) for one in numbers]
    judged = [fell for fell in told if fell is not None]
    size = "scaled: " if found.get("scaled") else ""
    size = "made-up data: " if found.get("stand_in") else size
    title = f"{found['paper']}, {found['where']}"
    if not judged:
        made = sum(difference(paper, ours) is None and bool(ours.get("seeds")) for _, paper, ours in numbers)
        return f"{title}: {size}{made} numbers measured; the paper gives none to compare with."
    reached, short = judged.count(False), judged.count(True)
    return f"{title}: {size}{reached} of {len(judged)} numbers reach the paper's, {short} fall short."
