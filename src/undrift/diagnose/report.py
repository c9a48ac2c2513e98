"""The diagnosis on one page, in plain words, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from undrift.core.files import finite
from undrift.diagnose.advice import LAYER_FACTOR, MILD, SPLIT_BYTES, Advice
from undrift.diagnose.costs import Bytes, SplitFit
from undrift.diagnose.probe import Findings
from undrift.diagnose.race import Standing

WIDTH = 100


@dataclass(frozen=True)
class Diagnosis:
    """All that was found, and what follows from it."""

    findings: Findings
    advice: Advice
    costs: dict[str, Bytes]
    """By algorithm, in the order of the advice; FedAvg's among them."""
    split: SplitFit | None
    standings: Sequence[Standing] = ()

    def as_json(self) -> dict[str, Any]:
        """For ``diagnosis.json``; numbers that are not finite become null."""
        content = {
            "verdict": self.advice.verdict,
            "recommended": [asdict(candidate) for candidate in self.advice.ranked],
            "against": self.advice.against,
            "drifting_layers": self.advice.drifting,
            "findings": self.findings.as_json(),
            "bytes_a_round": {name: asdict(cost) for name, cost in self.costs.items()},
            "split": None if self.split is None else asdict(self.split),
            "race": [
                {
                    "algorithm": s.racer.candidate.name,
                    "lr": s.racer.config.train.lr,
                    "rounds": s.rounds,
                    "validation_rolling_accuracy": s.validation,
                    "test_accuracy": s.test,
                }
                for s in self.standings
            ],
        }
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
        settings = ", ".join(f"{part}.{k} = {v}" for part, own in one.parameters.items() for k, v in own.items())
        parts += _wrapped(f"{number}. {one.name}{f' ({settings})' if settings else ''}: {one.reason}.", "   ")
    if advice.against:
        parts += ["", "Not recommended:"]
        for what, why in advice.against.items():
            parts += _wrapped(f"- {what}: {why}.", "  ")
    if diagnosis.standings:
        parts += ["", "Race (validation data decide; test accuracy is for information):", *_race(diagnosis.standings)]
    parts += ["", f"Ready to run: undrift run {folder}/recommended.toml"]
    return "\n".join(parts)


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


def _race(standings: Sequence[Standing]) -> list[str]:
    lines = [f"  {'algorithm':<18} {'lr':>8} {'rounds':>7} {'validation':>11} {'test':>7}"]
    for s in standings:
        name, lr = s.racer.candidate.name, s.racer.config.train.lr
        lines.append(f"  {name:<18} {lr:>8g} {s.rounds:>7} {s.validation:>11.4f} {s.test:>7.4f}")
    return lines
