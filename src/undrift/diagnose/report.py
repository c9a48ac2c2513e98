"""The diagnosis on one page, in plain words, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from undrift.core.files import finite
from undrift.diagnose.advice import LAYER_FACTOR, MILD, SPLIT_BYTES, Advice, Candidate
from undrift.diagnose.answer import FALLS_TO, Expected, Instead, points
from undrift.diagnose.candidates import Field
from undrift.diagnose.costs import Bytes, SplitFit
from undrift.diagnose.probe import Findings
from undrift.diagnose.race import Outcome, Standing

WIDTH = 100


@dataclass(frozen=True)
class Raced:
    """A race and what follows from it."""

    standings: Sequence[Standing]
    """The best first; among those that cannot be told apart from it, the cheaper in bytes first."""
    outcome: Outcome
    field: Field
    """What the probe predicted."""
    expected: Sequence[Expected]
    """What each of the standings is expected to reach in a run of the configured length."""
    instead: Sequence[Instead]
    falls_after: int | None = None
    """The round after which the recommended rate falls; None: as configured."""

    @property
    def tied(self) -> list[str]:
        """Those that cannot be told apart from the best, and it."""
        return [one.racer.name for one in self.outcome.tied]

    def place_predicted(self, standing: Standing) -> int:
        """1: the probe expected it to win."""
        labels = [one.label for one in self.field.candidates]
        return labels.index(standing.racer.candidate.label) + 1

    def as_json(self, rounds: int) -> dict[str, Any]:
        """For ``diagnosis.json``."""
        points = {one.candidate.label: one.points for one in self.field.predicted}
        standings = zip(self.standings, self.expected, strict=True)
        return {
            "metric": self.outcome.monitor.metric,
            "less_is_better": self.outcome.monitor.less,
            "expected": asdict(self.expected[0]) | {"rounds": rounds},
            "rate_falls_after": self.falls_after,
            "race": [
                {
                    "algorithm": one.racer.candidate.name,
                    "label": one.racer.candidate.label,
                    "parameters": one.racer.candidate.parameters,
                    "lr": one.racer.config.train.lr,
                    "rounds": one.rounds,
                    "validation": one.value,
                    "standard_error": one.error,
                    "expected": asdict(carried),
                    "tied_with_the_best": one.racer.name in self.tied,
                    "predicted_place": self.place_predicted(one),
                    "predicted_points": points[one.racer.candidate.label],
                    "curve": one.curve,
                }
                for one, carried in standings
            ],
            "instead": [
                {
                    "algorithm": one.standing.racer.candidate.label,
                    "lr": one.standing.racer.config.train.lr,
                    "when": one.when,
                }
                for one in self.instead
            ],
            "left_out": self.field.left_out,
            "failed": self.outcome.failed,
            "heats": [asdict(heat) for heat in self.outcome.heats],
            "race_rounds": self.outcome.rounds,
        }


@dataclass(frozen=True)
class Diagnosis:
    """All that was found, and what follows from it."""

    findings: Findings
    advice: Advice
    costs: dict[str, Bytes]
    """By algorithm, in the order of the advice; FedAvg's among them."""
    split: SplitFit | None
    raced: Raced | None = None
    not_raced: str = ""
    """Why there was no race, where one was asked for."""

    def as_json(self) -> dict[str, Any]:
        """For ``diagnosis.json``; numbers that are not finite become null."""
        content: dict[str, Any] = {
            "verdict": self.advice.verdict,
            "recommended": [asdict(candidate) for candidate in self.advice.ranked],
            "against": self.advice.against,
            "drifting_layers": self.advice.drifting,
            "findings": self.findings.as_json(),
            "bytes_a_round": {name: asdict(cost) for name, cost in self.costs.items()},
            "split": None if self.split is None else asdict(self.split),
            "race": [],
            "not_raced": self.not_raced,
        }
        if self.raced is not None:
            content |= self.raced.as_json(self.findings.rounds)
        plain: dict[str, Any] = finite(content)
        return plain


def page(diagnosis: Diagnosis, folder: str) -> str:
    """The one-page answer."""
    found, advice = diagnosis.findings, diagnosis.advice
    parts = [
        advice.verdict,
        "",
        *_section("How non-IID", _skew(found)),
        *_section("Which layers drift", _layers(found, advice)),
        *_section("Server data", _server(found, advice)),
        *_section("Memory at clients", _memory(found, advice)),
        *_section("Split learning", _split(diagnosis)),
        "",
        "Sent in a round by the whole cohort:",
        *_costs(diagnosis.costs),
        "",
        "Recommended:",
    ]
    for number, one in enumerate(advice.ranked, 1):
        parts += _wrapped(f"{number}. {one.name}{_settings(one)}: {one.reason}.", "   ")
    if diagnosis.raced is not None:
        parts += ["", *raced_lines(diagnosis.raced, found.rounds)]
    elif diagnosis.not_raced:
        parts += ["", f"Not raced: {diagnosis.not_raced}; this is the probe's answer alone."]
    if advice.against:
        parts += ["", "Not recommended:"]
        for what, why in advice.against.items():
            parts += _wrapped(f"- {what}: {why}.", "  ")
    parts += ["", f"Ready to run: undrift run {folder}/recommended.toml"]
    return "\n".join(parts)


def _settings(one: Candidate) -> str:
    settings = ", ".join(f"{part}.{k} = {v}" for part, own in one.parameters.items() for k, v in own.items())
    return f" ({settings})" if settings else ""


def raced_lines(raced: Raced, rounds: int) -> list[str]:
    """What the race found, beside what the probe predicted."""
    monitor, best, hope = raced.outcome.monitor, raced.standings[0], raced.expected[0]
    lines = _wrapped(
        f"Expected of {best.racer.candidate.label} after {rounds} rounds: {monitor.metric} {hope.value:.3f} "
        f"({hope.low:.3f} to {hope.high:.3f}).",
        "  ",
    )
    if raced.falls_after is not None:
        rate = best.racer.config.train.lr
        lines += _wrapped(
            f"Its rate is {rate:g}, and {FALLS_TO * rate:g} after round {raced.falls_after}: what moves the model to "
            f"and fro has done its work by then.",
            "  ",
        )
    if len(raced.tied) > 1:
        told = ", ".join(one.racer.candidate.label for one in raced.standings if one.racer.name in raced.tied)
        lines += _wrapped(f"Validation data cannot tell these apart; the cheaper in bytes stands first: {told}.", "  ")
    for number, one in enumerate(raced.instead):
        behind = points(one.standing.value - best.at(one.standing.rounds), monitor)
        same = "" if one.standing.rounds == best.rounds else f" at round {one.standing.rounds}"
        what = "Runner-up" if not number else "Or"
        when = f"; rather take it if {one.when}" if one.when else ""
        lines += _wrapped(f"{what}: {one.standing.racer.candidate.label}, {behind} apart{same}{when}.", "  ")
    lines += ["", f"Race of {raced.outcome.rounds} rounds in all (validation data decide):", *_race(raced)]
    lines += _wrapped(
        "Left out: " + "; ".join(f"{name}: {why}" for name, why in raced.field.left_out.items()) + ".", "  "
    )
    lines += [f"Failed: {name}: {why}" for name, why in raced.outcome.failed.items()]
    return lines


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent)


def _section(title: str, text: str) -> list[str]:
    return _wrapped(f"{title}. {text}", "  ")


def _skew(found: Findings) -> str:
    start = found.points[0]
    labels = ""
    if found.skew is not None:
        share = 1.0 if not found.skew.entropy_pooled else found.skew.entropy / found.skew.entropy_pooled
        labels = (
            f"A client's labels lie {found.skew.emd:.2f} from the pooled ones (earth mover's distance, 0 to 1) and "
            f"have {share:.0%} of their entropy. "
        )
    return (
        f"{labels}Client gradients differ by G^2 = {start.G2:.3g} at the start, {start.G2_iid:.3g} if the same samples "
        f"were dealt out at random; the excess is {found.excess:.2f} times ||grad F||^2 (below {MILD:g} it hardly "
        f"matters). Updates point {_angle(found.cosine)} along their mean; their diversity is {found.drift:.1f} times "
        f"that of equal updates."
    )


def _angle(cosine: float | None) -> str:
    return "in unknown directions" if cosine is None else f"with cosine {cosine:.2f}"


def _layers(found: Findings, advice: Advice) -> str:
    each = ", ".join(f"{name} {value:.1f}" for name, value in found.layers.items())
    if not advice.drifting:
        return f"None stands out: {each} (drift diversity against that of equal updates)."
    return (
        f"{', '.join(advice.drifting)}: {LAYER_FACTOR:g} times the calmer layers or more. All: {each} "
        f"(drift diversity against that of equal updates)."
    )


def _server(found: Findings, advice: Advice) -> str:
    server = found.server
    if server is None:
        return "There is none; a few hundred samples of all classes at the server would open server learning."
    numbers = (
        f"{server.samples} samples; their gradient has cosine {server.cosine:.2f} with the federation's, "
        f"xi^2/G^2 = {server.ratio:.3f}, and condition (9) {'holds' if server.helps else 'fails'} "
        f"(L = {found.smoothness:.2g}, eta_0 = {server.eta_0:.2g})"
    )
    bad = "server learning (fsl)" in advice.against
    return f"{numbers}: {'not good enough to learn from' if bad else 'good enough to learn from'}."


def _memory(found: Findings, advice: Advice) -> str:
    rate = f"{found.cohort} of {found.clients} clients take part in a round"
    stale = any(what.startswith("a memory") for what in advice.against)
    return f"{rate}: {'too rarely' if stale else 'often enough'} for what a client remembers to be of use."


def _split(diagnosis: Diagnosis) -> str:
    split, plain = diagnosis.split, diagnosis.costs["fedavg"]
    if split is None:
        return "This model cannot be cut."
    times = split.bytes.total / plain.total
    fits = "fits" if times <= SPLIT_BYTES else "does not fit"
    return (
        f"It {fits}: at its cheapest cut ({split.cut} block{'s' * (split.cut > 1)}, {split.share:.1%} of the "
        f"parameters at the client) it sends {times:.1f} times FedAvg's bytes."
    )


def _costs(costs: dict[str, Bytes]) -> list[str]:
    base = costs["fedavg"].total
    return [
        f"  {name:<18} {cost.down / 1e6:>9.3f} MB down {cost.up / 1e6:>9.3f} MB up   {cost.total / base:>5.2f} x FedAvg"
        for name, cost in costs.items()
    ]


def _race(raced: Raced) -> list[str]:
    metric = raced.outcome.monitor.metric
    lines = [f"  {'candidate':<28} {'lr':>8} {'rounds':>7} {metric:>10} {'±':>7} {'predicted place':>16}"]
    for one in raced.standings:
        lines.append(
            f"  {one.racer.candidate.label:<28} {one.racer.config.train.lr:>8g} {one.rounds:>7} "
            f"{one.value:>10.4f} {one.error:>7.4f} {raced.place_predicted(one):>16}"
        )
    return lines
