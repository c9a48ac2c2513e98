"""What a recipe gave, as JSON; tables of *paper | ours | difference* are generated from it, never typed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from undrift.core.files import read_object, write_json
from undrift.errors import UnreadableError
from undrift.experiment.run_folder import dotted, read_summary
from undrift.experiment.run_many import Planned
from undrift.recipes import metrics
from undrift.recipes.recipe import Arm, Number, Recipe, full_label
from undrift.recipes.run import Options, Outcome, finished, planned, settings_of
from undrift.recipes.scale import differences
from undrift.recipes.under_way import so_far

Evidence = dict[str, Any]
MISSING = "missing"


def evidence_of(outcome: Outcome, command: str) -> Evidence:
    """Everything about what was run; runs that were not made are listed as missing."""
    recipe, options = outcome.recipe, outcome.options
    arms = [_arm(outcome, arm, command) for arm in recipe.arms]
    add_comparisons(recipe.metrics, arms)
    first = recipe.arms[0]
    full = settings_of(*_paper_arm(recipe, options, first), {})
    small = settings_of(recipe, options, first, {})
    return {
        "recipe": recipe.name,
        "paper": recipe.paper,
        "where": recipe.where,
        "title": recipe.title,
        "date": time.strftime("%Y-%m-%d"),
        "command": command,
        "size": recipe.size,
        "reason": recipe.sizes[recipe.size].reason if recipe.size else None,
        "scale": options.scale,
        "scaled": options.labelled_scaled(recipe),
        "scaling": differences(full, small),
        "stand_in": options.stand_in,
        "metrics": list(recipe.metrics),
        "tuning": {
            "rounds": recipe.tuning.rounds,
            "validation": recipe.tuning.validation,
            "seed": recipe.tuning.seed,
            "by": "rolling validation accuracy, one key after another",
        },
        "unmeasured": outcome.unmeasured,
        "notes": list(recipe.notes),
        "arms": arms,
        "failures": {name: text.splitlines()[0] for name, text in outcome.failures.items()},
    }


def stem(evidence: Evidence) -> str:
    """``NAME``; ``NAME.SIZE`` or ``NAME.scaled`` for what is smaller than the paper's."""
    small = f".{evidence['size']}" if evidence.get("size") else ".scaled" if evidence["scaled"] else ""
    return f"{evidence['recipe']}{'.stand-in' if evidence['stand_in'] else small}"


_NEEDED = {"recipe", "paper", "where", "title", "metrics", "arms", "scaled", "stand_in"}


def write_evidence(evidence: Evidence, folder: Path) -> Path:
    """``STEM.json``; lines that were not run this time keep what an earlier call on the same experiment found."""
    path = folder / f"{stem(evidence)}.json"
    earlier = read_object(path) if path.exists() else None
    write_json(path, evidence if earlier is None else with_earlier(evidence, earlier))
    return path


def with_earlier(evidence: Evidence, earlier: Evidence) -> Evidence:
    """The evidence, with those lines of an earlier one that it has no run of; each keeps how it was made.

    A line that the recipe no longer has stays too; one that it now has with other settings does not.
    """
    same = ("recipe", "size", "scale", "scaling", "stand_in")
    if any(evidence.get(key) != earlier.get(key) for key in same):
        return evidence
    before = {
        (arm["group"], arm["label"]): {**arm, "by": made_by(earlier, arm)} for arm in earlier["arms"] if arm["runs"]
    }
    arms, kept = [], []
    for arm in evidence["arms"]:
        old = before.pop((arm["group"], arm["label"]), None)
        if old is not None and not arm["runs"] and _same_settings(old, arm):
            arm = {**old, "paper": arm["paper"]}
            kept.append(arm)
        arms.append(arm)
    kept += before.values()
    add_comparisons(evidence["metrics"], arms := [*arms, *before.values()])
    notes = dict.fromkeys([*evidence["notes"], *(earlier["notes"] if kept else ())])
    return {**evidence, "arms": arms, "notes": list(notes)}


def _same_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether a line means the same as before: what it tunes, keys that came later and how often it looks aside."""
    free = {*old["setting"], *new["setting"], "seed", "train.eval_every"}
    a, b = (dotted(line["configuration"] or {}) for line in (old, new))
    return all(a[key] == b[key] for key in (a.keys() & b.keys()) - free)


def made_by(evidence: Evidence, arm: Mapping[str, Any]) -> dict[str, Any]:
    """By which command, when and with what a line's runs were made."""
    if "by" in arm:
        return dict(arm["by"])
    return {key: evidence[key] for key in ("command", "date", "versions") if key in evidence}


def missing_runs(evidence: Evidence) -> list[str]:
    """Every run that was asked for and not made; a line of which none was asked for counts as one."""
    return [run for arm in evidence["arms"] for run in arm["missing"]]


def read_evidence(folder: Path) -> list[Evidence]:
    """All results in a folder, by name."""
    return [_result(path) for path in sorted(folder.glob("*.json"))]


def _result(path: Path) -> Evidence:
    found = read_object(path)
    if missing := sorted(_NEEDED - found.keys()):
        raise UnreadableError(f"{path}: no result (no {missing[0]!r} in it)")
    return found


def _paper_arm(recipe: Recipe, options: Options, arm: Arm) -> tuple[Recipe, Options, Arm]:
    """The same arm at the paper's own size."""
    from undrift.recipes import RECIPES

    full = RECIPES.get(recipe.name, recipe)
    return full, Options(options.out), full.arm(arm.group, arm.label) or arm


def _arm(outcome: Outcome, arm: Arm, command: str) -> dict[str, Any]:
    label = full_label(arm)
    runs = outcome.runs.get(label, [])
    done = [run for run in runs if finished(run)]
    chosen = outcome.chosen.get(label)
    made = [_run(outcome.recipe.metrics, run) for run in done]
    return {
        "label": arm.label,
        "group": arm.group,
        "algorithm": arm.algorithm,
        "setting": dict(chosen.setting) if chosen else {},
        "chosen": chosen.how if chosen else MISSING,
        "tried": chosen.tried if chosen else [],
        "configuration": _without_places((done[0] if done else _as_declared(outcome, arm)).config.complete()),
        "paper": dict(arm.paper),
        "by": {"command": command, "date": time.strftime("%Y-%m-%d"), **_made_with(done)},
        "runs": made,
        "under_way": [begun for run in runs if run not in done and (begun := so_far(run))],
        "missing": [run.name for run in runs if run not in done] or ([label] if not runs else []),
        "ours": {m: spread([run["metrics"].get(m) for run in made]) for m in outcome.recipe.metrics if not compared(m)},
    }


def _as_declared(outcome: Outcome, arm: Arm) -> Planned:
    setting = {key: arm.settings[key] for key in arm.sweep if key in arm.settings}
    return planned(outcome.recipe, outcome.options, arm, setting, 0)


def _run(names: Sequence[str], run: Planned) -> dict[str, Any]:
    plain = {(compared(name) or ("", "", name))[2] for name in names} - {""}
    summary = read_summary(run.out)
    return {
        "seed": run.config.seed,
        "metrics": {name: metrics.value(name, run.out) for name in sorted(plain)},
        "measured": metrics.measured(run.out),
        "seconds": round(summary["seconds"], 1),
        "curve": metrics.curve(run.out),
    }


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and standard deviation over seeds; None where a seed never got there."""
    there = [value for value in values if value is not None]
    if not there:
        return {"mean": None, "std": None, "seeds": len(values), "without": len(values)}
    return {
        "mean": statistics.fmean(there),
        "std": statistics.stdev(there) if len(there) > 1 else 0.0,
        "seeds": len(values),
        "without": len(values) - len(there),
    }


def compared(metric: str) -> tuple[str, str, str] | None:
    """A metric that compares with another arm: kind, that arm, what is compared (nothing: the curves)."""
    kind, _, rest = metric.partition(":")
    other, _, plain = rest.partition(":")
    return (kind, other, plain) if kind in ("ratio", "gain", "late") else None


def add_comparisons(names: Sequence[str], arms: Sequence[dict[str, Any]]) -> None:
    """Ratios to and leads over another arm of the group, seed by seed where both have it."""
    for name in names:
        if (parts := compared(name)) is None:
            continue
        kind, other, plain = parts
        base = {(arm["group"], run["seed"]): run for arm in arms if arm["label"] == other for run in arm["runs"]}
        for arm in arms:
            pairs = [(run, base.get((arm["group"], run["seed"]))) for run in arm["runs"]]
            arm["ours"][name] = spread([_against(kind, plain, a, b) for a, b in pairs if b is not None])


def _against(kind: str, plain: str, run: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    if kind == "late":
        return metrics.late(run["curve"], other["curve"])
    ours, base = run["metrics"].get(plain), other["metrics"].get(plain)
    if ours is None or not base:
        return None
    return float(ours / base if kind == "ratio" else ours - base)


def difference(paper: Number, ours: Mapping[str, Any]) -> float | None:
    """Ours minus the paper's, where both are numbers."""
    if isinstance(paper, str) or paper is None or ours.get("mean") is None or ours.get("without"):
        return None
    return float(ours["mean"] - paper)


def falls_short(metric: str, paper: Number, ours: Mapping[str, Any]) -> bool | None:
    """Whether ours is worse than the paper's; None where that cannot be said."""
    if paper is None or isinstance(paper, str) or not ours.get("seeds"):
        return None
    if ours["mean"] is None or ours["without"]:
        return True
    gap = ours["mean"] - paper
    return (gap > 0 if metrics.lower_is_better(metric) else gap < 0) and not math.isclose(gap, 0.0, abs_tol=1e-9)


def _without_places(settings: dict[str, Any]) -> dict[str, Any]:
    """A configuration without this machine: no roots, file names only relative to the data."""
    settings = {key: dict(value) if isinstance(value, dict) else value for key, value in settings.items()}
    settings.pop("engine", None)
    settings["data"].pop("root", None)
    for section, key in (("data", "path"), ("server_data", "path"), ("model", "init")):
        if settings.get(section, {}).get(key):
            path = Path(settings[section][key])
            settings[section][key] = "/".join(path.parts[-2:]) if section == "server_data" else path.name
    return settings


def _made_with(done: Sequence[Planned]) -> dict[str, Any]:
    """Versions (the commit among them), processor and precision; several of one kind stand side by side."""
    found: dict[str, set[str]] = {}
    for run in done:
        for key, version in read_summary(run.out)["versions"].items():
            found.setdefault(key, set()).add(version)
    precisions = sorted({read_summary(run.out).get("precision", run.config.engine.precision) for run in done})
    return {
        "versions": {key: " and ".join(sorted(values)) for key, values in found.items()},
        "precision": " and ".join(precisions),
    }
