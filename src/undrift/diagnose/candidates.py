"""Which chains are worth racing in a federation, with which first values, and in which order.

A chain takes at most one of each: a correction at the clients, momentum, server learning. What the probe rules out is
left out with the reason. The order is a prediction: which will be ahead *at the configured number of rounds*.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from undrift.diagnose.advice import MILD, Candidate, memory_pays
from undrift.diagnose.probe import Findings, ServerData

BASELINE = "fedavg"
CORRECTIONS = ("", "fedprox", "scaffold", "fedpvr")
MOMENTA = ("", "slowmo", "fedadc")
SERVER = ("", "fsl")
MOMENTUM = frozenset({"slowmo", "fedadc"})
MEMORIES = frozenset({"scaffold", "fedpvr", "feddyn"})
"""What keeps a state at the clients."""
DOMINATED = {
    "fedprox": "it holds clients back without correcting their direction, and has won nowhere",
    "slowmo": "without control variates fedadc is the same momentum, in the local steps too",
}
"""Raced only in the long race."""
BETA, HIGH_BETA = 0.7, 0.9
"""Momentum: a step lives on for three rounds, or for ten; the latter overshoots under control variates."""
NONSENSE = 0.1
"""Server data whose gradient has a lower cosine with the federation's are not even raced."""
CLOSE = 0.1
"""Server data whose ``xi^2 / G^2`` is larger are not counted on: misleading ones of the tuned half had 0.15, good ones
0.03 to 0.07."""
GAINS = {
    False: {
        "fedadc (beta 0.9)": 5.2,
        "fedadc+fsl (beta 0.9)": 3.9,
        "scaffold+fedadc": 3.7,
        "fedpvr+fedadc": 3.6,
        "fedadc": 3.5,
        "scaffold+slowmo": 3.3,
        "feddyn": 3.1,
        "slowmo": 3.0,
        "fedpvr+slowmo": 3.0,
        "scaffold+slowmo+fsl": 2.8,
        "scaffold+fedadc+fsl": 2.6,
        "fedpvr+slowmo+fsl": 2.5,
        "slowmo+fsl": 2.4,
        "fedpvr+fedadc+fsl": 2.2,
        "fedadc+fsl": 2.0,
        "feddyn+fsl": 1.6,
        "scaffold": 0.1,
        "fedpvr": 0.1,
        "scaffold+fsl": -0.7,
        "fedpvr+fsl": -0.9,
        "fsl": -1.0,
    },
    True: {
        "fedadc+fsl (beta 0.9)": 9.4,
        "scaffold+slowmo+fsl": 9.1,
        "fedadc (beta 0.9)": 8.1,
        "fedpvr+slowmo+fsl": 7.6,
        "scaffold+fedadc": 7.3,
        "slowmo+fsl": 7.1,
        "fedadc+fsl": 6.9,
        "fedpvr+fedadc+fsl": 6.9,
        "fedpvr+fedadc": 6.4,
        "scaffold+fedadc+fsl": 6.1,
        "fedadc": 5.8,
        "scaffold+slowmo": 5.8,
        "fedpvr+slowmo": 5.3,
        "feddyn": 5.2,
        "scaffold+fsl": 4.8,
        "scaffold": 4.5,
        "slowmo": 3.6,
        "fedpvr": 3.4,
        "feddyn+fsl": 3.3,
        "fedpvr+fsl": 2.3,
        "fsl": 0.8,
    },
}
"""Points of accuracy ahead of FedAvg in a run without end, without and with drift: means over the tuned half of
``benchmarks/advice``, one with misleading server data among them; FedProx adds nothing."""
LIVES = {BETA: 3, HIGH_BETA: 10}
"""Rounds that a step lives on in the momentum: in half so many it has hardly begun to help."""
CURVED = 0.2
"""``lr * L`` below which a larger rate is tried, else a smaller one ..."""
DIVERGES = 2.0
"""... from this on, plain gradient steps diverge."""
TWICE = 2.0
"""Between the rates that are tried."""


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
    raced = [name for name in chains() if not _has_any_of(left_out, name.split("+"))]
    candidates = [one for name in raced for one in _variants(name, first_values(found, drifting))]
    predicted = [Predicted(one, predicted_points(found, one)) for one in candidates]
    return Field(sorted(predicted, key=lambda one: -one.points), left_out)


def _has_any_of(left_out: dict[str, str], parts: list[str]) -> bool:
    """Whether a part is left out; ``slowmo`` is not, beside control variates."""
    gone = left_out.keys() & set(parts)
    return bool(gone - {"slowmo"} or (gone and not MEMORIES & set(parts)))


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

    Momentum needs rounds to gather speed; server data that are not close to the whole promise nothing.
    """
    known, chain = GAINS[found.excess >= MILD], one.label.removeprefix("fedprox").removeprefix("+")
    gain = known.get(chain, 0.0)
    if found.server is not None and found.server.ratio > CLOSE:
        gain = min(gain, known.get(chain.replace("fsl", "").strip("+").replace("+ ", " "), 0.0))
    lives = LIVES[HIGH_BETA if one.variant else BETA] if MOMENTUM & one.parts else 0
    return gain * found.rounds / (found.rounds + lives)


def takes_larger_steps(found: Findings, rate: float, one: Candidate) -> bool:
    """Whether twice the rate is worth a try: not on a curved loss, and not where momentum meets control variates.

    The latter make steps that are three times as long already, along directions that age. With momentum ``beta`` a
    step lives on and moves the model by ``1 / (1 - beta)`` times its length in all: that, too, must not diverge, which
    the few rounds of a race do not show yet.
    """
    beta = max((one.parameters.get(part, {}).get("beta", 0.0) for part in MOMENTUM), default=0.0)
    curved = found.smoothness * rate
    stable = TWICE * curved / (1 - beta) < DIVERGES
    return curved < CURVED and stable and not (MOMENTUM & one.parts and MEMORIES & one.parts)
