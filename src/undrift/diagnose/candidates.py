"""Which chains are worth racing in a federation, with which first values, and in which order.

A chain takes at most one of each: a correction at the clients, momentum, server learning. What the probe rules out is
left out with the reason. The order is a prediction: which will be ahead *at the configured number of rounds*.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
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
CLOSE, STRAIGHT = 0.1, 0.5
"""Server data are counted on whose ``xi^2 / G^2`` is at most so large, or whose gradient has at least such a cosine
with the federation's: misleading ones of the tuned half had 0.15 and 0.17, good ones up to 0.07 or, where clients are
alike and ``G^2`` is small, 0.7."""
GAINS = {
    True: {
        "fedadc+fsl (beta 0.9)": 7.7,
        "scaffold+slowmo+fsl": 7.6,
        "fedadc+fsl": 7.1,
        "fedpvr+slowmo+fsl": 7.1,
        "slowmo+fsl": 6.9,
        "fedpvr+fedadc+fsl": 6.8,
        "feddyn+fsl": 6.3,
        "scaffold+fedadc+fsl": 6.2,
        "fedadc (beta 0.9)": 5.5,
        "scaffold+fedadc": 5.4,
        "scaffold+fsl": 5.2,
        "fedadc": 5.0,
        "feddyn": 4.8,
        "fedpvr+fedadc": 4.6,
        "fedpvr+fsl": 4.4,
        "fedpvr+slowmo": 3.8,
        "scaffold": 3.8,
        "scaffold+slowmo": 3.5,
        "fsl": 3.3,
        "fedpvr": 3.0,
        "slowmo": 2.5,
    },
    False: {
        "scaffold+fedadc": 6.3,
        "fedadc (beta 0.9)": 6.1,
        "fedpvr+fedadc": 5.7,
        "scaffold+slowmo": 5.1,
        "fedadc": 4.9,
        "feddyn": 4.6,
        "fedpvr+slowmo": 4.4,
        "slowmo": 3.7,
        "scaffold": 2.9,
        "fedpvr": 2.0,
    },
}
"""Points of accuracy ahead of FedAvg, with server data that are close to the whole and without such: means over the
tuned half of ``benchmarks/advice``, two seeds; FedProx adds nothing. They were measured in runs of ..."""
MEASURED = 33
"""... so many rounds, on average."""
DOUBT = 1.9
"""Points less that server learning promises where the server's data are in doubt: enough for the best chain with it to
race behind the two best without, so that the race decides."""
LIVES = {BETA: 3, HIGH_BETA: 10}
"""Rounds that a step lives on in the momentum: in half so many it has hardly begun to help."""
CURVED = 0.05
"""``lr * L`` below which a larger rate is tried."""
DIVERGES = 2.0
"""From this on, plain gradient steps diverge."""
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


def counted_on(server: ServerData | None) -> bool:
    """Whether the server's data are close to the whole, or point where it points."""
    return server is not None and (server.ratio <= CLOSE or server.cosine >= STRAIGHT)


def predicted_points(found: Findings, one: Candidate) -> float:
    """By how many points a candidate is expected to be ahead of FedAvg when the run ends.

    Momentum needs rounds to gather speed; in longer runs leads do not grow, as all come close to what can be reached.
    Where clients are alike, control variates correct nothing.
    """
    idle = {"fedprox", "scaffold", "fedpvr"} if found.excess < MILD else {"fedprox"}
    name = "+".join(part for part in one.name.split("+") if part not in idle) or BASELINE
    chain = replace(one, name=name).label
    if counted_on(found.server):
        gain = GAINS[True].get(chain, 0.0)
    elif "fsl" in one.parts:
        gain = GAINS[True].get(chain, 0.0) - DOUBT
    else:
        gain = GAINS[False].get(chain, 0.0)
    lives = LIVES[HIGH_BETA if one.variant else BETA] if MOMENTUM & one.parts else 0
    return gain * min(1.0, _gathered(found.rounds, lives) / _gathered(MEASURED, lives))


def _gathered(rounds: int, lives: int) -> float:
    """The share of its final speed that momentum has had in a run, on average."""
    return rounds / (rounds + lives)


def other_rate(found: Findings, rate: float, one: Candidate) -> float | None:
    """The factor on the configured rate that is worth a try; None where the rate is neither small nor large.

    With momentum ``beta`` a step lives on and moves the model by ``1 / (1 - beta)`` times its length in all. Twice the
    rate is tried where even that is far from diverging (a race shows the larger rate's speed, but not yet its noise),
    and not where momentum meets control variates, along directions that age. Half of it where steps would diverge.
    """
    beta = max((one.parameters.get(part, {}).get("beta", 0.0) for part in MOMENTUM), default=0.0)
    curved = found.smoothness * rate
    if curved / (1 - beta) >= DIVERGES:
        return 1 / TWICE
    flat = curved < CURVED and TWICE * curved / (1 - beta) < DIVERGES / 2
    return TWICE if flat and not (MOMENTUM & one.parts and MEMORIES & one.parts) else None
