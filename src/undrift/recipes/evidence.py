"""What a recipe gave, as JSON; tables of *paper | ours | difference* are generated from it, never typed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from undrift.core.files import read_object, write_json
from undrift.experiment.run_folder import read_summary
from undrift.experiment.run_many import Planned
from undrift.recipes import metrics
from undrift.recipes.recipe import Arm, Number, Recipe, full_label
from undrift.recipes.run import Options, Outcome, finished, settings_of
from undrift.recipes.scale import differences

Evidence = dict[str, Any]
MISSING = "missing"


def evidence_of(outcome: Outcome, command: str) -> Evidence:
    """Everything about what was run; runs that were not made are listed as missing."""
    recipe, options = outcome.recipe, outcome.options
    arms = [_arm(outcome, arm) for arm in recipe.arms]
    _add_comparisons(recipe.metrics, arms)
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
        "versions": _versions(outcome),
        "unmeasured": outcome.unmeasured,
        "notes": list(recipe.notes),
        "arms": arms,
        "missing": [run for arm in arms for run in arm["missing"]],
        "failures": {name: text.splitlines()[0] for name, text in outcome.failures.items()},
    }


def write_evidence(evidence: Evidence, folder: Path) -> Path:
    """``NAME.json``; ``NAME.SIZE.json`` or ``NAME.scaled.json`` for what is smaller than the paper's."""
    small = f".{evidence['size']}" if evidence.get("size") else ".scaled" if evidence["scaled"] else ""
    suffix = ".stand-in" if evidence["stand_in"] else small
    path = folder / f"{evidence['recipe']}{suffix}.json"
    write_json(path, evidence)
    return path


def read_evidence(folder: Path) -> list[Evidence]:
    """All results in a folder, by name."""
    return [read_object(path) for path in sorted(folder.glob("*.json"))]


def _paper_arm(recipe: Recipe, options: Options, arm: Arm) -> tuple[Recipe, Options, Arm]:
    """The same arm at the paper's own size."""
    from undrift.recipes import RECIPES

    full = RECIPES.get(recipe.name, recipe)
    return full, Options(options.out), full.arm(arm.group, arm.label) or arm


def _arm(outcome: Outcome, arm: Arm) -> dict[str, Any]:
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
        "configuration": _without_places(done[0].config.complete()) if done else None,
        "paper": dict(arm.paper),
        "runs": made,
        "missing": [run.name for run in runs if run not in done] or ([label] if not runs else []),
        "ours": {m: spread([run["metrics"].get(m) for run in made]) for m in outcome.recipe.metrics if not compared(m)},
    }


def _run(names: Sequence[str], run: Planned) -> dict[str, Any]:
    plain = {(compared(name) or ("", "", name))[2] for name in names}
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
    """A metric that compares with another arm: kind, that arm, what is compared."""
    kind, _, rest = metric.partition(":")
    other, _, plain = rest.partition(":")
    return (kind, other, plain) if kind in ("ratio", "gain") else None


def _add_comparisons(names: Sequence[str], arms: Sequence[dict[str, Any]]) -> None:
    """Ratios to and leads over another arm of the group, seed by seed where both have it."""
    for name in names:
        if (parts := compared(name)) is None:
            continue
        kind, other, plain = parts
        base = {
            (arm["group"], run["seed"]): run["metrics"].get(plain)
            for arm in arms
            if arm["label"] == other
            for run in arm["runs"]
        }
        for arm in arms:
            pairs = [(run["metrics"].get(plain), base.get((arm["group"], run["seed"]))) for run in arm["runs"]]
            arm["ours"][name] = spread([_against(kind, a, b) for a, b in pairs])


def _against(kind: str, ours: float | None, base: float | None) -> float | None:
    if ours is None or not base:
        return None
    return ours / base if kind == "ratio" else ours - base


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
    lower = metric.split(":")[0].startswith(metrics.LOWER_IS_BETTER)
    gap = ours["mean"] - paper
    return (gap > 0 if lower else gap < 0) and not math.isclose(gap, 0.0, abs_tol=1e-9)


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


def _versions(outcome: Outcome) -> dict[str, str]:
    for runs in outcome.runs.values():
        for run in runs:
            if finished(run):
                return dict(read_summary(run.out).get("versions", {}))
    return {}
