"""From what was measured to what to use: a few rules with their thresholds and reasons, in plain words.

The order of questions: is there drift worth correcting; can the server's data correct it; in which layers does it
sit; do clients come back often enough to keep a memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from undrift.diagnose.probe import Findings, ServerData

MILD = 0.5
"""Excess dissimilarity below this: the part of a client's gradient that is its own is shorter than 0.7 times the common
part, so clients' steps lie within about 35 degrees of the common direction, and averaging them is nearly pooled SGD."""
HARD = 4.0
"""Above this the client's own part is more than twice the common one (over 63 degrees apart): local steps mostly
work for the client alone, and what corrects only the average comes too late."""
SERVER_COSINE = 0.3
"""Below this cosine, less than a tenth (0.3^2) of the squared length of a server step works for the federation; labels
that have nothing to do with the inputs give about 0 at the start and less than 0 after some training."""
SERVER_RATIO = 1.0
"""``xi^2 / G^2`` must stay below this: the server's data must be closer to the whole than a typical client is."""
LAYER_FACTOR = 1.5
"""A layer drifts when its updates are this much more diverse than those of the calmer half of the layers; differences
below it occur between layers of IID federations too, from noise alone."""
STALE_ROUNDS = 20
"""A client that is drawn less often than every so many rounds corrects with a memory of a model long gone."""
TURNS = 3
"""A client must be drawn so many times in the run for a memory to be filled and then used more than once."""
SPLIT_BYTES = 2.0
"""Split learning is worth a thought while it sends at most so many times the bytes of FedAvg."""


@dataclass(frozen=True)
class Candidate:
    """An algorithm with its parameters, and why."""

    name: str
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    reason: str = ""
    variant: str = ""
    """What sets it apart from others of the same name."""

    @property
    def label(self) -> str:
        """Unique among candidates."""
        return f"{self.name} ({self.variant})" if self.variant else self.name

    @property
    def parts(self) -> set[str]:
        """The single algorithms of the chain."""
        return set(self.name.split("+"))


@dataclass(frozen=True)
class Advice:
    """What follows from the findings."""

    verdict: str
    ranked: list[Candidate]
    """The best first."""
    against: dict[str, str]
    """What not to use, and why."""
    drifting: list[str]
    """Layers that drift more than the others."""


def advise(found: Findings) -> Advice:
    """The advice for these findings; nothing but them decides."""
    drifting = drifting_layers(found.layers)
    against: dict[str, str] = {}
    stale = memory_pays(found)
    if stale is not None:
        against["a memory at clients (scaffold, fedpvr, feddyn)"] = stale
    stateful, served = stale is None, False
    if found.server is not None:
        misled = misleading(found.server)
        served = misled is None
        if misled is not None:
            against["server learning (fsl)"] = misled
    if found.excess < MILD:
        return Advice(_verdict(found), _mild(), against, drifting)
    control = _control(found, drifting, stateful)
    ranked = _with_server(found, control) if served else [control]
    ranked += [other for other in _others(stateful) if other.name not in {one.name for one in ranked}]
    return Advice(_verdict(found), ranked[:3], against, drifting)


def drifting_layers(layers: dict[str, float]) -> list[str]:
    """Layers whose drift stands out; none where all drift alike.

    Diversities are compared by ratio: a layer stands out that is nearer to the most diverse one than to the calm ones.
    """
    known = {name: value for name, value in layers.items() if math.isfinite(value)}
    if len(known) < 2:
        return []
    lower = sorted(known.values())[: len(known) // 2]
    calm, most = sum(lower) / len(lower), max(known.values())
    return [name for name, value in known.items() if value >= max(LAYER_FACTOR * calm, math.sqrt(calm * most))]


def _verdict(found: Findings) -> str:
    if found.excess < MILD:
        return "FedAvg will do: the clients' data are alike enough."
    if found.excess < HARD:
        return "Moderately non-IID: clients drift, and a drift control is worth its cost."
    return "Strongly non-IID: clients pull in directions of their own, and plain averaging loses most of their work."


def memory_pays(found: Findings) -> str | None:
    """None where a memory at clients can be of use, else why it cannot."""
    gap, turns = found.clients / found.cohort, found.rounds * found.cohort / found.clients
    if gap <= STALE_ROUNDS and turns >= TURNS:
        return None
    return (
        f"a client takes part every {gap:.0f} rounds, {turns:.1f} times in {found.rounds} rounds: "
        "what it remembers is stale or hardly used"
    )


def misleading(server: ServerData) -> str | None:
    """None where the server's data can be learnt from, else what is wrong with them."""
    reasons = []
    if server.cosine < SERVER_COSINE:
        reasons.append(f"its gradient hardly points where the federation's does (cosine {server.cosine:.2f})")
    if server.ratio > SERVER_RATIO:
        reasons.append(f"it is further from the whole than a typical client (xi^2/G^2 = {server.ratio:.2f})")
    if not server.helps:
        reasons.append("a step on it would not lower the federation's loss (FSL's condition 9)")
    return "the server's data would mislead: " + "; ".join(reasons) if reasons else None


def _mild() -> list[Candidate]:
    return [
        Candidate("fedavg", {}, "client gradients differ little more than samples dealt out at random would"),
        Candidate("fedadc", {"fedadc": {"beta": 0.7}}, "no drift to correct, but momentum may save rounds"),
    ]


def _control(found: Findings, drifting: list[str], stateful: bool) -> Candidate:
    """The correction at clients."""
    if not stateful:
        return Candidate(
            "fedadc",
            {"fedadc": {"beta": 0.7}},
            "clients come back too rarely for a memory; the server's momentum needs none",
        )
    if not drifting:
        return Candidate("scaffold", {}, "all layers drift alike, so all of them get control variates")
    names = list(found.layers)
    last = names[len(names) - len(drifting) :]
    layers: int | list[str] = len(drifting) if drifting == last else drifting
    calm = [found.layers[name] for name in names if name not in drifting]
    share = sum(found.shares[name] for name in drifting)
    reason = (
        f"the drift sits in {', '.join(drifting)} ({max(found.layers[n] for n in drifting):.1f} against "
        f"{sum(calm) / len(calm):.1f} elsewhere): control variates on them, {share:.1%} of the parameters, "
        "leave the features free"
    )
    return Candidate("fedpvr", {"fedpvr": {"layers": layers}}, reason)


def _with_server(found: Findings, control: Candidate) -> list[Candidate]:
    assert found.server is not None
    good = (
        f"the server's {found.server.samples} samples point the federation's way "
        f"(cosine {found.server.cosine:.2f}, xi^2/G^2 = {found.server.ratio:.3f})"
    )
    both = Candidate(
        f"{control.name}+fsl", control.parameters | {"fsl": {"gamma": 1.0}}, f"{good}; and {control.reason}"
    )
    alone = Candidate("fsl", {"fsl": {"gamma": 1.0}}, f"{good}; nothing is sent besides the model")
    return [both, alone, control] if found.excess >= HARD else [control, both, alone]


def _others(stateful: bool) -> list[Candidate]:
    momentum = Candidate(
        "fedadc", {"fedadc": {"beta": 0.7}}, "momentum in the local steps keeps clients on a common course"
    )
    if not stateful:
        return [
            momentum,
            Candidate("fedprox", {"fedprox": {"mu": 0.1}}, "holds clients near the server model, sends nothing more"),
        ]
    return [
        Candidate("scaffold", {}, "control variates on all layers: the strongest correction, at twice the bytes"),
        momentum,
    ]
