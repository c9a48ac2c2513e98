"""From measured rounds to medians, ratios, bars and a page of tables."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from works import WARM, WORKS, Bar

CLOSE = 0.25
"""Systems did the same work if the loss fell by the same amount, up to this share of the median fall."""
BUSY = 0.5
"""A load average above this before a run means that others used the machine."""

Result = dict[str, Any]


def a_round(seconds: list[float], eval_every: int) -> list[float]:
    """Seconds a round, warm: single rounds; where there are evaluations, means over windows that hold one each."""
    warm = seconds[WARM - 1 :] if len(seconds) > WARM else seconds
    size = min(eval_every or 1, len(warm))
    return [statistics.fmean(warm[start : start + size]) for start in range(len(warm) - size + 1)]


def summarise(result: Result) -> None:
    """Add medians, spread, start-up and memory to every system of a result."""
    every = result["spec"]["eval_every"]
    for entry in result["systems"].values():
        runs = [run for run in entry["runs"] if "failed" not in run]
        if not runs:
            continue
        rounds = [a_round(run["seconds"], every) for run in runs]
        medians = [statistics.median(part) for part in rounds]
        pooled = sorted(second for part in rounds for second in part)
        low, high = (pooled[round(share * (len(pooled) - 1))] for share in (0.25, 0.75))
        entry["summary"] = {
            "seconds_a_round": statistics.median(medians),
            "medians_of_runs": medians,
            "quartiles_over_rounds": [low, high],
            "start_up_seconds": statistics.median(
                run["first_round_end"] - median for run, median in zip(runs, medians, strict=True)
            ),
            "cpu_seconds_a_round": statistics.median(run["cpu_a_round"] for run in runs),
            "peak_pss_mb": max(run["pss_mb"] for run in runs),
            "peak_rss_mb": max(run["rss_mb"] for run in runs),
            "final_loss": statistics.median(run["loss"] for run in runs),
            "parameters": runs[0]["parameters"],
            "versions": runs[0]["versions"],
        }
    _compare_losses(result)


def _compare_losses(result: Result) -> None:
    """Note which systems' loss fell about as far as the median system's (other algorithms, models: no comparison)."""
    done = [entry for entry in result["systems"].values() if "summary" in entry]
    alike = [e for e in done if not {"algorithm", "model", "users", "cohort"} & e["settings"].keys()]
    if not alike:
        return
    start = alike[0]["runs"][0]["untrained_loss"]
    falls = [start - entry["summary"]["final_loss"] for entry in alike]
    middle = statistics.median(falls)
    for entry, fall in zip(alike, falls, strict=True):
        same_model = entry["summary"]["parameters"] == alike[0]["summary"]["parameters"]
        entry["summary"]["same_work"] = bool(same_model and abs(fall - middle) <= CLOSE * abs(middle))


def ratio(result: Result, bar: Bar, key: str = "seconds_a_round") -> float | None:
    """How many times as much the slow side takes, each side at its best; None if a side was not measured."""
    sides = []
    for names in (bar.fast, bar.slow):
        found = [result["systems"][name]["summary"][key] for name in names if _has(result, name)]
        if not found:
            return None
        sides.append(min(found))
    return float(sides[1] / sides[0])


def _has(result: Result, name: str) -> bool:
    return "summary" in result["systems"].get(name, {})


def write_readme(folder: Path) -> None:
    """Write the page from the stored results."""
    results = [json.loads((folder / f"{key}.json").read_text()) for key in WORKS if (folder / f"{key}.json").exists()]
    parts = [HEAD]
    bars = _bars(results)
    if bars:
        parts.append("## Bars\n\n" + bars)
    parts.extend(_section(result) for result in results)
    (folder / "README.md").write_text("\n".join(parts))


HEAD = """# Benchmarks

Made by `make bench` (`benchmarks/run.py`). All systems do the same work on the same data (a smooth random
prototype for each class, plus noise), one after the other, with the same limit on threads.

- **Seconds a round**: median over the rounds after the first two, then over repetitions; quartiles over all counted
  rounds. Where the work has evaluations, over windows of as many rounds as lie between two of them.
- **CPU**: what all processes together used, spin loops included; on a machine that others use too, look at this.
- **Start-up**: from the start of the process to the end of the first round, less one round.
- **Memory**: peak of the whole process tree, pages shared by several processes counted once (PSS, sampled every
  second). Resident sizes simply added up are in the JSON files.
- **Final loss**: in evaluation mode, on the same 2,000 training samples. `differs` marks a system whose loss fell by
  more than 25 % more or less than the median system's, or whose model has another size.
"""


def _bars(results: list[Result]) -> str:
    lines = ["| work | bar | measured | the same in CPU time | met |", "|---|---|---|---|---|"]
    for result in results:
        for bar in WORKS[result["work"]].bars:
            measured, cpu = ratio(result, bar), ratio(result, bar, "cpu_seconds_a_round")
            wanted = f"≥ {bar.factor:.2g}x" if bar.factor > 1 else f"≤ {1 / bar.factor:.2f}x the time"
            if measured is None:
                met = "not measured"
            elif result["load_before"] > BUSY:
                met = "not judged: machine in use"
            else:
                met = "yes" if measured >= bar.factor else "**no**"
            mark = " (quick)" if result["quick"] else ""
            shown = " | ".join(_factor(value, bar) for value in (measured, cpu))
            lines.append(f"| {result['work']}{mark} | {bar.text} ({wanted}) | {shown} | {met} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def _factor(value: float | None, bar: Bar) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}x" if bar.factor > 1 else f"{1 / value:.2f}x the time"


def _conditions(result: Result) -> str:
    machine, versions = result["machine"], dict[str, str]()
    for entry in result["systems"].values():
        versions |= entry.get("summary", {}).get("versions", {})
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    times = f"{result['repeat']} repetition{'s' * (result['repeat'] > 1)}"
    text = (
        f"{result['rounds']} rounds, {times}; {machine['cpu']}, {machine['cores']} cores, "
        f"{machine['memory_gb']:.0f} GB; {made}; {result['date']}."
    )
    if result["quick"]:
        text += " **A quick run: few rounds.**"
    if result["load_before"] > BUSY:
        text += f" **Others used the machine at the same time** (load {result['load_before']} before the start)."
    return text


def _section(result: Result) -> str:
    lines = [f"## ({result['work']}) {result['title']}" if len(result["work"]) == 1 else f"## {result['title']}", ""]
    lines += [_conditions(result), ""]
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
