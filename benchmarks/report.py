"""A page of tables from the stored results, the kinds of processors side by side."""

from __future__ import annotations

import json
from pathlib import Path

from ratios import Result, bars_of, ratio
from works import WORKS, Bar

BUSY = 0.5
"""A load above this before a run means that others used the machine."""
KEYS = (*WORKS, "against")


def write_readme(folder: Path) -> None:
    """Write the page from the stored results, a folder for each kind of processor."""
    kinds = {place.name: _stored(place) for place in sorted(folder.iterdir()) if place.is_dir()}
    kinds = {kind: results for kind, results in kinds.items() if results}
    parts = [HEAD, "## Bars\n\n" + _bars(kinds)]
    for key in KEYS:
        found = {kind: results[key] for kind, results in kinds.items() if key in results}
        if found:
            parts.append(_title(next(iter(found.values()))))
            parts.extend(_section(kind, result) for kind, result in found.items())
    (folder / "README.md").write_text("\n".join(parts))


def _stored(folder: Path) -> dict[str, Result]:
    paths = {key: folder / f"{key}.json" for key in KEYS}
    return {key: json.loads(path.read_text()) for key, path in paths.items() if path.exists()}


HEAD = """# Benchmarks

Made by `make bench` (`benchmarks/run.py`). All systems do the same work on the same data (a smooth random
prototype for each class, plus noise), with the same limit on threads. Where it says so, they are alive together and
take turns of a few rounds, so that what disturbs the machine disturbs all alike; older results are from systems that
ran one after the other. Where it says that memory was at hand, so much was used and given back before every turn: the
host of a virtual machine takes free memory away, and who has to find it again would be a matter of chance.

- **Seconds a round**: median over the rounds after the first turn (without turns: after the first two), then over
  repetitions; quartiles over all counted rounds. Where the work has evaluations, over windows of as many rounds as
  lie between two of them.
- **Ratios to bars**: from turns, the median over a run's turns of the ratio within a turn, then over repetitions.
- **CPU**: what all processes together used, spin loops included; on a machine that others use too, look at this.
- **Start-up**: from the start of the process to the end of the first round, less one round.
- **Memory**: peak of the whole process tree, pages shared by several processes counted once (PSS, sampled every
  second at the start and at the ends of turns). Resident sizes simply added up are in the JSON files.
- **Final loss**: in evaluation mode, on the same 2,000 training samples. `differs` marks a system whose loss fell by
  more than 25 % more or less than the median system's, or whose model has another size.
"""


def _bars(kinds: dict[str, dict[str, Result]]) -> str:
    lines = [f"| work | bar | {' | '.join(kinds)} |", "|---|---|" + "---|" * len(kinds)]
    for key in KEYS:
        results = [results.get(key) for results in kinds.values()]
        known = next((result for result in results if result), None)
        for bar in bars_of(known) if known else []:
            cells = " | ".join("" if result is None else _judged(result, bar) for result in results)
            lines.append(f"| {key} | {bar.text} ({_wanted(bar)}) | {cells} |")
    return "\n".join(lines) + "\n"


def bar_lines(result: Result) -> list[str]:
    """A line for each bar of a result."""
    return [f"({result['work']}) {bar.text} ({_wanted(bar)}): {_judged(result, bar)}" for bar in bars_of(result)]


def _wanted(bar: Bar) -> str:
    return f"≥ {bar.factor:.2g}x" if bar.factor > 1 else f"≤ {1 / bar.factor:.2f}x the time"


def _judged(result: Result, bar: Bar) -> str:
    measured, cpu = ratio(result, bar), ratio(result, bar, "cpu_seconds_a_round")
    if measured is None:
        return ""
    met = "met" if measured >= bar.factor else "**missed**"
    if result["load_before"] > BUSY and "turn" not in result:
        met = "not judged: machine in use"
    quick = ", quick" if result["quick"] else ""
    return f"{_factor(measured, bar)} (CPU {_factor(cpu, bar)}): {met}{quick}"


def _factor(value: float | None, bar: Bar) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}x" if bar.factor > 1 else f"{1 / value:.3f}x"


def _conditions(result: Result) -> str:
    machine, versions = result["machine"], dict[str, str]()
    for entry in result["systems"].values():
        versions |= entry.get("summary", {}).get("versions", {})
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    times = f"{result['repeat']} repetition{'s' * (result['repeat'] > 1)}"
    turns = f"in turns of {result['turn']}" if "turn" in result else "one system after the other"
    if result.get("touched"):
        turns += f" with {result['touched']} MB at hand"
    text = (
        f"{result['rounds']} rounds, {turns}, {times}; {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gb']:.0f} GB; {made}; {result['date']}."
    )
    if result["quick"]:
        text += " **A quick run: few rounds.**"
    if result["load_before"] > BUSY:
        text += f" **Others used the machine at the same time** (load {result['load_before']} before the start)."
    return text


def _title(result: Result) -> str:
    named = f"({result['work']}) " if len(result["work"]) == 1 else ""
    return f"## {named}{result['title']}\n"


def _section(kind: str, result: Result) -> str:
    lines = [f"### {kind}", "", _conditions(result), ""]
    growth = result["work"] == "growth"
    first = "parameters" if growth else "ours is faster by"
    lines.append(f"| system | s a round | quartiles | {first} | CPU s a round | start-up s | memory MB | final loss |")
    lines.append("|---|---|---|---|---|---|---|---|")
    ours = result["systems"].get("ours", {}).get("summary")
    for name, entry in result["systems"].items():
        found = entry.get("summary")
        if not entry["runs"]:
            lines.append(f"| {entry['label']} | left out: others use the machine | | | | | | |")
            continue
        if found is None:
            lines.append(f"| {entry['label']} | failed: {entry['runs'][0]['failed']} | | | | | | |")
            continue
        if growth:
            against = f"{found['parameters']:,}"
        else:
            against = f"{found['seconds_a_round'] / ours['seconds_a_round']:.2f}x" if ours and name != "ours" else ""
        low, high = found["quartiles_over_rounds"]
        mark = " (differs)" if found.get("same_work") is False else ""
        cells = (
            entry["label"],
            _seconds(found["seconds_a_round"]),
            f"{_seconds(low)} to {_seconds(high)}",
            against,
            _seconds(found["cpu_seconds_a_round"]),
            f"{found['start_up_seconds']:.1f}",
            f"{found['peak_pss_mb']:.0f}",
            f"{found['final_loss']:.3f}{mark}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _seconds(value: float) -> str:
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}"
