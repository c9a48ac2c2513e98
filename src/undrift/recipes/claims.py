"""What a paper says of a table or figure, in words, and how a result is held against it.

A claim consists of checks on the means over seeds. It is *met* when every check holds (*as far as run*: every check
that could be made, while a rival has not been run), *not met* when one fails, *open* when nothing that it needs has
been run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from undrift.recipes import metrics

Line = Mapping[str, Any]
"""An arm as the evidence has it."""
MET, MET_SO_FAR, NOT_MET, OPEN = "met", "met as far as run", "not met", "open"
MANY = 4
"""Comparisons of one kind that are still told one by one."""


@dataclass(frozen=True)
class Finding:
    """One comparison that could be made."""

    about: str
    """What was compared."""
    text: str
    """The numbers."""
    holds: bool
    seeds: int
    """How many seeds it rests on."""


@dataclass(frozen=True)
class Ahead:
    """A line is better than others by more than ``by``, in every group that has both; a full label names one line."""

    arm: str
    than: tuple[str, ...]
    metric: str
    by: float = 0.0

    def findings(self, lines: Sequence[Line]) -> Iterator[Finding]:
        """One for each group and rival."""
        for ours in _named(lines, self.arm):
            for rival in self.than:
                for theirs in _named(lines, rival):
                    if ":" in rival or theirs["group"] == ours["group"]:
                        yield from self._compare(ours, theirs)

    def _compare(self, ours: Line, theirs: Line) -> Iterator[Finding]:
        a, b = _mean(ours, self.metric), _mean(theirs, self.metric)
        if a is None and b is None:
            return
        if a is None or b is None:  # one of them never got to an accuracy that the other reached
            gap = float("inf") if b is None else float("-inf")
        else:
            gap = b - a if metrics.lower_is_better(self.metric) else a - b
        text = f"{label(ours)} {shown(ours, self.metric)}, {_apart(ours, theirs)} {shown(theirs, self.metric)}"
        yield Finding(metrics.title(self.metric), text, gap > self.by, _seeds(ours, theirs))


@dataclass(frozen=True)
class Reaches:
    """Lines are at least as good as a value: the paper's own where none is given."""

    arms: tuple[str, ...]
    metric: str
    value: float | None = None

    def findings(self, lines: Sequence[Line]) -> Iterator[Finding]:
        """One for each line."""
        for line in (line for arm in self.arms for line in _named(lines, arm)):
            goal = line["paper"].get(self.metric) if self.value is None else self.value
            if isinstance(goal, str) or goal is None:
                continue
            ours = _mean(line, self.metric)
            better = ours is not None and (ours <= goal if metrics.lower_is_better(self.metric) else ours >= goal)
            text = f"{label(line)} {shown(line, self.metric)}, {metrics.digits(self.metric, goal)} wanted"
            holds = better and not line["ours"][self.metric]["without"]
            yield Finding(metrics.title(self.metric), text, holds, _seeds(line))


@dataclass(frozen=True)
class Smaller:
    """One measured quantity of a line is smaller than another."""

    arm: str
    metric: str
    than: str

    def findings(self, lines: Sequence[Line]) -> Iterator[Finding]:
        """One for each group."""
        for line in _named(lines, self.arm):
            a, b = _mean(line, self.metric), _mean(line, self.than)
            if a is not None and b is not None:
                about = f"{metrics.title(self.metric)} against {metrics.title(self.than)}"
                text = f"{label(line)} {metrics.digits(self.metric, a)}, {metrics.digits(self.than, b)}"
                yield Finding(about, text, a < b, _seeds(line))


@dataclass(frozen=True)
class GrowsWithDepth:
    """A quantity that is measured by layer is larger at the output than on average over the layers before it."""

    arm: str
    metric: str

    def findings(self, lines: Sequence[Line]) -> Iterator[Finding]:
        """One for each group."""
        key = self.metric.split(":")[-1].split(".")[0]
        for line in _named(lines, self.arm):
            by_layer = (line["runs"][0]["measured"].get(key) or {}).get("layers", {})
            values = [value for value in by_layer.values() if value is not None]
            *before, last = values or [0.0]
            if before:
                mean = sum(before) / len(before)
                text = f"{label(line)} {last:.3g}, {mean:.3g}"
                yield Finding(f"{key} of the last layer against the mean before it", text, last > mean, 1)


Check = Ahead | Reaches | Smaller | GrowsWithDepth


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper (or a goal of ours) and what it means in numbers."""

    words: str
    checks: tuple[Check, ...]


def verdict(claim: Claim, lines: Sequence[Line]) -> tuple[str, list[Finding]]:
    """Met (as far as run), not met or open, and what it was decided on."""
    findings = [finding for check in claim.checks for finding in check.findings(lines)]
    if not findings:
        return OPEN, []
    if not all(finding.holds for finding in findings):
        return NOT_MET, findings
    return (MET_SO_FAR if any(_unmade(check, lines) for check in claim.checks) else MET), findings


def _unmade(check: Check, lines: Sequence[Line]) -> bool:
    """Whether a rival that a check names has no run to compare with."""
    if not isinstance(check, Ahead):
        return False
    return any(not list(replace(check, than=(rival,)).findings(lines)) for rival in check.than)


def label(line: Line) -> str:
    """Group and label in one."""
    return f"{line['group']}: {line['label']}" if line["group"] else str(line["label"])


def shown(line: Line, metric: str) -> str:
    """A number with its spread and the number of seeds."""
    ours = line["ours"].get(metric) or {}
    if not ours.get("seeds"):
        return "missing"
    if ours["mean"] is None:
        return f"not reached ({ours['seeds']})"
    several = ours["seeds"] - ours["without"] > 1
    text = metrics.digits(metric, ours["mean"]) + (f" ± {metrics.digits(metric, ours['std'])}" if several else "")
    text += f" ({ours['seeds']})"
    return text + (f", not reached by {ours['without']}" if ours["without"] else "")


def told(findings: Sequence[Finding]) -> str:
    """What a verdict was decided on; what does not hold is marked; many that hold are counted."""
    by_subject: dict[str, list[Finding]] = {}
    for finding in findings:
        by_subject.setdefault(finding.about, []).append(finding)
    return "; ".join(f"{about}: {_together(own)}" for about, own in by_subject.items())


def _together(findings: Sequence[Finding]) -> str:
    if len(findings) > MANY and all(finding.holds for finding in findings):
        return f"all {len(findings)} comparisons"
    return "; ".join(finding.text + ("" if finding.holds else " (**no**)") for finding in findings)


def _apart(ours: Line, theirs: Line) -> str:
    return str(theirs["label"]) if ours["group"] == theirs["group"] else label(theirs)


def _seeds(*lines: Line) -> int:
    return min(len(line["runs"]) for line in lines)


def _named(lines: Sequence[Line], name: str) -> list[Line]:
    """The lines of that label, or of that full label, that have been run."""
    return [line for line in lines if line["runs"] and name in (line["label"], label(line))]


def _mean(line: Line, metric: str) -> float | None:
    mean = (line["ours"].get(metric) or {}).get("mean")
    return None if mean is None else float(mean)
