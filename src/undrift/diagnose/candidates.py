"""Which chains are worth racing in a federation, with which first values, and in which order.

A chain takes at most one of each: a correction at the clients, momentum, server learning. What the probe rules out is
left out with the reason. The order is a prediction: which will be ahead *at the configured number of rounds*.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from undrift.diagnose.advice import Candidate, memory_pays
from undrift.diagnose.experience import experience, features
from undrift.diagnose.probe import Findings, ServerData

BASELINE = "fedavg"
CORRECTIONS = ("", "fedprox", "scaffold", "fedpvr")
MOMENTA = ("", "slowmo", "fedadc")
SERVER = ("", "fsl")
MOMENTUM = frozenset({"slowmo", "fedadc"})
MEMORIES = frozenset({"scaffold", "fedpvr", "feddyn"})
"""What keeps a state at the clients."""
DOMINATED = {"fedprox": "it holds clients back without correcting their direction, and has won nowhere"}
"""Raced only in the long race."""
BETA, HIGH_BETA = 0.7, 0.9
"""Momentum: a step lives on for three rounds, or for ten; the latter overshoots under control variates."""
NONSENSE = 0.1
"""Server data whose gradient has a lower cosine with the federation's are not even raced."""
CLOSE, STRAIGHT = 0.1, 0.5
"""Server data are counted on whose ``xi^2 / G^2`` is at most so large, or whose gradient has at least such a cosine
with the federation's. In the experience, all such gained from server learning or lost a point; of three others, two
lost more than five and one gained ten."""
DOUBT = 3.0
"""Points that server learning is expected to stay behind the best without, where its data are not counted on: in the
experience, misleading data led by up to 2.8 after a tenth of the run, and were behind after three tenths ..."""
DOUBTFUL_PLACE = 2
"""... and the place among those who enter a race at which one chain with it does all the same: the race decides."""
DIVERGES = 2.0
"""From this on, plain gradient steps diverge."""
TWICE = 2.0
"""Between the rates that are tried."""
ENTRANTS = 8
"""Selected for a race at most; further ones are those predicted to win."""


@dataclass(frozen=True)
class Predicted:
    """A candidate, and what is expected of it when the run ends."""

    candidate: Candidate
    points: float
    """Ahead of FedAvg."""
    behind: float
    """Points behind the best of all, at most ``experience.WORST``."""


@dataclass(frozen=True)
class Field:
    """The candidates in the order of the prediction, and the algorithms that were left out, with the reason."""

    predicted: list[Predicted]
    left_out: dict[str, str] = field(default_factory=dict)
    selection: list[str] = field(default_factory=list)
    """Labels of candidates, in the order in which they enter a race: few of which one is likely to be close to the
    best."""

    @property
    def candidates(self) -> list[Candidate]:
        """The likeliest to win first."""
        return [one.candidate for one in self.predicted]

    def entered(self, count: int) -> list[Candidate]:
        """So many that a race is worth starting with."""
        by_label = {one.label: one for one in self.candidates}
        return [by_label[label] for label in dict.fromkeys([*self.selection, *by_label])][:count]


def chains() -> list[str]:
    """All sensible chains of the first family."""
    chosen = itertools.product(CORRECTIONS, MOMENTA, SERVER)
    free = ["+".join(part for part in parts if part) or BASELINE for parts in chosen]
    return [*free, "feddyn", "feddyn+fsl"]  # FedDyn owns both the correction and the server step


def field_of(found: Findings, drifting: list[str], *, broad: bool = False) -> Field:
    """The field of a race; ``broad``: with the chains that others are expected to beat in any federation."""
    left_out = ruled_out(found, broad)
    raced = [name for name in chains() if not left_out.keys() & set(name.split("+"))]
    candidates = [one for name in raced for one in variants_of(name, first_values(found, drifting))]
    predicted, selection = judged(candidates, found)
    return Field(sorted(predicted, key=lambda one: one.behind), left_out, selection)


def judged(candidates: list[Candidate], found: Findings) -> tuple[list[Predicted], list[str]]:
    """What other federations say of these candidates, and whom to race."""
    known, place = experience(), list(features(found).values())
    labels = [one.label for one in candidates]
    doubtful = found.server is not None and not counted_on(found.server)
    weights = known.weights(place, found.server is not None and not doubtful)
    sure = [label for label in labels if not (doubtful and "fsl" in label)]
    points, behind = known.expected(weights, labels), known.predicted(weights, sure)
    selection = known.selected(weights, sure, ENTRANTS)
    if served := [label for label in labels if label not in sure]:
        behind |= dict.fromkeys(served, min(behind.values()) + DOUBT)
        likeliest = max(served, key=lambda label: points[label])
        selection = [*selection[:DOUBTFUL_PLACE], likeliest, *selection[DOUBTFUL_PLACE:]]
    return [Predicted(one, points[one.label], behind[one.label]) for one in candidates], selection


def counted_on(server: ServerData) -> bool:
    """Whether the server's data are close to the whole, or point where it points."""
    return server.ratio <= CLOSE or server.cosine >= STRAIGHT


def ruled_out(found: Findings, broad: bool) -> dict[str, str]:
    """Algorithms that no candidate may have, with the reason."""
    out = {} if broad else dict(DOMINATED)
    if (stale := memory_pays(found)) is not None:
        out |= dict.fromkeys(sorted(MEMORIES), stale)
    elif len(found.layers) < 2:
        out["fedpvr"] = "the model has one layer, so it is scaffold"
    if found.server is None:
        out["fsl"] = "the server has no data"
    elif (reason := nonsense(found.server)) is not None:
        out["fsl"] = reason
    return out


def nonsense(server: ServerData) -> str | None:
    """Why the server's data are not worth a race; None where they are."""
    if server.cosine < NONSENSE:
        return f"the server's data would mislead (the cosine of their gradient is {server.cosine:.2f})"
    if not server.helps:
        return "the server's data would mislead (a step on them would not lower the federation's loss)"
    return None


def first_values(found: Findings, drifting: list[str]) -> dict[str, dict[str, Any]]:
    """The parameters that the race starts with."""
    return {
        "fedprox": {"mu": 0.1},
        "fedpvr": {"layers": layers_for(found, drifting)},
        "feddyn": {"alpha": 0.1},
        "slowmo": {"beta": BETA},
        "fedadc": {"beta": BETA},
        "fsl": {"gamma": 1.0},
    }


def variants_of(name: str, values: dict[str, dict[str, Any]]) -> Iterator[Candidate]:
    """A chain with its first values; without control variates, with a higher momentum too."""
    parts = name.split("+")
    own = {part: values[part] for part in parts if part in values}
    yield Candidate(name, own)
    if "fedadc" in parts and not MEMORIES & set(parts):
        yield Candidate(name, own | {"fedadc": {"beta": HIGH_BETA}}, variant=f"beta {HIGH_BETA:g}")


def layers_for(found: Findings, drifting: list[str]) -> int | list[str]:
    """What FedPVR corrects: the layers that drift; the last one where none stands out."""
    names = list(found.layers)
    last = names[len(names) - len(drifting) :]
    if not drifting:
        return 1
    return len(drifting) if drifting == last else drifting


def other_rate(found: Findings, one: Candidate) -> float:
    """The factor on the configured rate that the winner is tried with: a half where steps would diverge, else twice.

    With momentum ``beta`` a step lives on and moves the model by ``1 / (1 - beta)`` times its length in all.
    """
    beta = max((one.parameters.get(part, {}).get("beta", 0.0) for part in MOMENTUM), default=0.0)
    return 1 / TWICE if found.smoothness * found.rate / (1 - beta) >= DIVERGES else TWICE
