"""What chains gained over FedAvg in other federations, and which of those were like this one.

``experience.json`` (made by ``benchmarks/advice/learn.py``) holds, for each of many small random federations, what the
probe found and how many points of accuracy every chain ended ahead of FedAvg. Here they are weighed by likeness:
``w_i = exp(-|phi - phi_i|^2 / 2 h^2)``, ``phi`` the standardised findings. From that follow

- a *prediction*: the weighted mean of how many points a chain stayed behind the best of all, those far behind alike;
- a *selection* of few chains of which one is likely to be close to the best: chosen one after another, each time the
  one that most lowers the weighted mean of how far the best chosen stays behind the best of all.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.diagnose.probe import Findings

Array = NDArray[np.float64]
WIDTH = 2.5
"""``h``: how alike federations must be, in standard deviations of all findings together. Of 1.5, 2.5 and 5, this had
the least regret where each federation was left out in turn."""
ALL = 0.5
"""What all federations together weigh at least, as a share of the one most like this: so that nothing rests on one."""
WORST = 4.0
"""Points behind the best of all that count: what is further behind is simply no good. Otherwise federations in which
everything gains much would decide alone."""
FAILED = -20.0
"""Points of a chain that diverged."""
UNSERVED = {"cosine": 0.5, "ratio": 0.15}
"""Stand in where there are no server data."""


def features(found: Findings) -> dict[str, float]:
    """What likeness is judged by; of quantities that span magnitudes, the logarithm."""
    turns = found.rounds * found.participation
    logs = {
        "rounds": float(found.rounds),
        "participation": found.participation,
        "turns": turns,
        "excess": found.excess + 0.3,
        "curvature": found.smoothness * found.rate,
        "steps": found.steps,
        "drift": found.drift,
        "ratio": (UNSERVED["ratio"] if found.server is None else found.server.ratio) + 0.01,
    }
    known = {name: math.log(min(max(value, 1e-6), 1e6)) if value == value else 0.0 for name, value in logs.items()}
    return known | {"cosine": UNSERVED["cosine"] if found.server is None else found.server.cosine}


@dataclass(frozen=True)
class Experience:
    """Federations with their features (rows) and gains over FedAvg by chain (nan: not possible there)."""

    names: list[str]
    served: NDArray[np.bool_]
    features: Array
    chains: list[str]
    gains: Array

    @staticmethod
    def of(content: Mapping[str, Any]) -> Experience:
        """From the content of ``experience.json``."""
        rows, chains = content["federations"], content["chains"]
        gains = [[row["gains"].get(chain, math.nan) for chain in chains] for row in rows]
        return Experience(
            [row["name"] for row in rows],
            np.array([row["served"] for row in rows]),
            np.array([[row["features"][name] for name in content["features"]] for row in rows]),
            list(chains),
            np.array(gains, dtype=np.float64),
        )

    def weights(self, known: Sequence[float], served: bool) -> Array:
        """How alike each federation is; with server data, those that have none do not count.

        They cannot tell what server learning gives.
        """
        spread = self.features.std(axis=0) + 1e-9
        distance = (((self.features - np.array(known)) / spread) ** 2).sum(axis=1)
        alike: Array = np.exp(-(distance - distance.min()) / (2 * WIDTH**2)) + ALL / len(self.names)
        return np.where(self.served | (not served), alike, 0.0)

    def expected(self, weights: Array, labels: Sequence[str]) -> dict[str, float]:
        """Points that each of these chains is expected to be ahead of FedAvg; 0 for one that nothing is known of."""
        known = {chain: column for column, chain in enumerate(self.chains)}
        return {label: self._mean(weights, known[label]) if label in known else 0.0 for label in labels}

    def _mean(self, weights: Array, column: int) -> float:
        gains = self.gains[:, column]
        there = ~np.isnan(gains)
        return float((weights[there] * gains[there]).sum() / weights[there].sum())

    def behind(self, labels: Sequence[str]) -> Array:
        """Points that each of these chains stayed behind the best of them, ``WORST`` at most, by federation (rows)."""
        known = {chain: column for column, chain in enumerate(self.chains)}
        possible = self.gains[:, [known[label] for label in labels]]
        found: Array = np.minimum(np.nan_to_num(np.nanmax(possible, axis=1)[:, None] - possible, nan=WORST), WORST)
        return found

    def predicted(self, weights: Array, labels: Sequence[str]) -> dict[str, float]:
        """Points that each of these chains is expected to stay behind; ``WORST`` for one that nothing is known of."""
        known = [label for label in labels if label in self.chains]
        means = (weights[:, None] * self.behind(known)).sum(axis=0) / weights.sum()
        return dict.fromkeys(labels, WORST) | dict(zip(known, map(float, means), strict=True))

    def selected(self, weights: Array, labels: Sequence[str], count: int) -> list[str]:
        """So many of these chains of which one is likely to be close to the best."""
        known = [label for label in labels if label in self.chains]
        behind, best, chosen = self.behind(known), np.full(len(self.names), WORST), list[int]()
        while len(chosen) < min(count, len(known)):
            loss = (weights[:, None] * np.minimum(best[:, None], behind)).sum(axis=0)
            loss[chosen] = np.inf
            chosen.append(int(np.argmin(loss)))
            best = np.minimum(best, behind[:, chosen[-1]])
        return [known[place] for place in chosen]


def read() -> dict[str, Any]:
    """The content of ``experience.json``."""
    content: dict[str, Any] = json.loads(files("undrift.diagnose").joinpath("experience.json").read_text("utf-8"))
    return content


@cache
def experience() -> Experience:
    """What comes with the package."""
    return Experience.of(read())
