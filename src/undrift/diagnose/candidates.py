"""Which chains are worth racing in a federation, with which first values, and in which order.

A chain takes at most one of each: a correction at the clients, momentum, server learning. What the probe rules out is
left out with the reason. The order is a prediction: which will be ahead *at the configured number of rounds*.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from undrift.diagnose.advice import MILD, TURNS, Candidate, memory_pays
from undrift.diagnose.probe import Findings, ServerData

BASELINE = "fedavg"
CORRECTIONS = ("", "fedprox", "scaffold", "fedpvr")
MOMENTA = ("", "slowmo", "fedadc")
SERVER = ("", "fsl")
MEMORIES = frozenset({"scaffold", "fedpvr", "feddyn"})
"""What keeps a state at the clients."""
DOMINATED = {
    "fedprox": "it holds clients back without correcting their direction, and has won nowhere",
    "slowmo": "fedadc is the same momentum, in the local steps too",
}
"""Raced only in the long race."""
BETA, HIGH_BETA = 0.7, 0.9
"""Momentum: a step lives on for three rounds, or for ten; the latter overshoots under control variates."""
NONSENSE = 0.1
"""Server data whose gradient has a lower cosine with the federation's are not even raced."""
GAINS = {
    False: {"fedadc": 2.6, "high": 0.7, "feddyn": 2.9, "slowmo": 2.3, "fsl": 0.0},
    True: {"fedadc": 5.4, "high": 0.3, "feddyn": 4.6, "slowmo": 3.4, "scaffold": 3.5, "fedpvr": 2.7, "fsl": 3.8},
}
"""Points of accuracy ahead of FedAvg at the end, without and with drift: means over the tuned half of
``benchmarks/advice``."""
CURVED = 0.2
"""``lr * L`` below which a larger rate is tried, else a smaller one ..."""
DIVERGES = 2.0
"""... from this on, plain gradient steps diverge."""
TWICE = 2.0
"""Between the rates that are tried."""
TOGETHER = 0.35
"""What a second and a third part of a chain add, of what they gain alone (from the same runs)."""


@dataclass(frozen=True)
class Predicted:
    """A candidate, and by how many points it is expected to be ahead of FedAvg when the run ends."""

    candidate: Candidate
    points: float


@dataclass(frozen=True)
class Field:
    """The candidates in the order of the prediction, and the algorithms that were left out, with the reason."""

    predicted: list[Predicted]
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def candidates(self) -> list[Candidate]:
        """The likeliest to win first."""
        return [one.candidate for one in self.predicted]


def chains() -> list[str]:
    """All sensible chains of the first family."""
    chosen = itertools.product(CORRECTIONS, MOMENTA, SERVER)
    free = ["+".join(part for part in parts if part) or BASELINE for parts in chosen]
    return [*free, "feddyn", "feddyn+fsl"]  # FedDyn owns both the correction and the server step


def field_of(found: Findings, drifting: list[str], *, broad: bool = False) -> Field:
    """The field of a race; ``broad``: with the chains that others are expected to beat in any federation."""
    left_out = ruled_out(found, broad)
    raced = [name for name in chains() if not left_out.keys() & set(name.split("+"))]
    candidates = [one for name in raced for one in _variants(name, first_values(found, drifting))]
    predicted = [Predicted(one, predicted_points(found, one)) for one in candidates]
    return Field(sorted(predicted, key=lambda one: -one.points), left_out)


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


def _variants(name: str, values: dict[str, dict[str, Any]]) -> Iterator[Candidate]:
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


def predicted_points(found: Findings, one: Candidate) -> float:
    """By how many points a candidate is expected to be ahead of FedAvg when the run ends.

    Momentum needs rounds to gather speed and a memory needs turns to be filled; parts gain less together than alone.
    """
    gains, turns = GAINS[found.excess >= MILD], found.rounds * found.cohort / found.clients
    alone = []
    for part in one.parts:
        gain = gains.get(part, 0.0)
        if part == "fedadc":
            lives = 3 if not one.variant else 10
            gain = (gain + (gains["high"] if one.variant else 0.0)) * found.rounds / (found.rounds + lives)
        elif part in MEMORIES:
            gain *= turns / (turns + TURNS)
        alone.append(gain)
    most, *rest = sorted(alone, reverse=True)
    return most + TOGETHER * sum(rest)


def takes_larger_steps(found: Findings, rate: float, one: Candidate) -> bool:
    """Whether twice the rate is worth a try: not on a curved loss, and not where momentum meets control variates.

    The latter make steps that are three times as long already, along directions that age. With momentum ``beta`` a
    step lives on and moves the model by ``1 / (1 - beta)`` times its length in all: that, too, must not diverge, which
    the few rounds of a race do not show yet.
    """
    beta = one.parameters.get("fedadc", {}).get("beta", 0.0)
    curved = found.smoothness * rate
    stable = TWICE * curved / (1 - beta) < DIVERGES
    return curved < CURVED and stable and not ("fedadc" in one.parts and MEMORIES & one.parts)
