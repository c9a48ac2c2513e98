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
        parts += [tag("h3", "Race"), *_told(found), chart("diagnosis-race", index), _race(found["race"])]
        left_out = [tag("li", tag("b", what), ": ", why, ".") for what, why in (found.get("left_out") or {}).items()]
        parts += [tag("h3", "Not raced"), tag("ul", *left_out)] if left_out else []
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


def _told(found: dict[str, Any]) -> list[Html]:
    """What the best is expected to reach, what cannot be told apart from it, and who would take another one."""
    hope, metric = found.get("expected") or {}, found.get("metric", "")
    tied = [str(one.get("label")) for one in found["race"] if one.get("tied_with_the_best")]
    told = []
    if None not in (hope.get("value"), hope.get("low"), hope.get("high")):
        range_ = f"{hope['value']:.3f} ({hope['low']:.3f} to {hope['high']:.3f})"
        told.append(tag("p", f"Expected of the best after {hope.get('rounds')} rounds: {metric} {range_}."))
    if len(tied) > 1:
        told.append(tag("p", f"Validation data cannot tell these apart, the cheaper first: {', '.join(tied)}."))
    others = [(one.get("algorithm"), one.get("when")) for one in found.get("instead") or []]
    told += [tag("p", tag("b", name), f": rather this if {when}.") for name, when in others if when]
    return told


def _race(race: list[dict[str, Any]]) -> Html:
    """What the race found beside what the probe predicted."""
    head = ("candidate", "lr", "rounds", "validation (decides)", "±", "expected at the end", "place predicted")
    return table(head, [_raced(one) for one in race], class_="numbers")


def _raced(one: dict[str, Any]) -> list[object]:
    value, error, hope = one.get("validation"), one.get("standard_error"), one.get("expected") or {}
    ends = [f"{hope[key]:.3f}" for key in ("value", "low", "high") if hope.get(key) is not None]
    told = f"{ends[0]} ({ends[1]} to {ends[2]})" if len(ends) == 3 else "–"
    numbers = ["–" if number is None else f"{number:.4f}" for number in (value, error)]
    return [one.get("label"), f"{one.get('lr'):g}", one.get("rounds"), *numbers, told, one.get("predicted_place")]


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
