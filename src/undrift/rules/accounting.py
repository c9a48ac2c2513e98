"""What differential privacy costs, by the package ``dp-accounting``: nothing of it is computed here."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

from undrift.core.plugins import load
from undrift.errors import ConfigError

GRID = 1e-3
"""How finely privacy loss is counted at noise 1 (below, losses are larger by ``1/noise^2``, and so is the grid).

Ten times coarser than the package's default and as much faster; epsilon stays an upper bound, larger by a thousandth.
"""
SMALLEST_NOISE, LARGEST_NOISE = 0.01, 1000.0


def epsilon(q: float, noise: float, delta: float, rounds: int) -> float:
    """After so many rounds, each with clients drawn with probability ``q``: the smaller of both accountants' values."""
    return min(by_renyi(q, noise, delta, rounds), by_loss(q, noise, delta, rounds))


@cache
def by_renyi(q: float, noise: float, delta: float, rounds: int) -> float:
    """By Renyi differential privacy."""
    accountant = _part("rdp.RdpAccountant")(neighboring_relation=_relation())
    with _quiet():
        accountant.compose(_event(q, noise), rounds)
        return float(accountant.get_epsilon(delta))


@cache
def by_loss(q: float, noise: float, delta: float, rounds: int) -> float:
    """By privacy loss distributions."""
    if not rounds:
        return 0.0
    with _quiet():
        return float(_one_round(q, noise).self_compose(rounds).get_epsilon_for_delta(delta))


def noise_for(q: float, target: float, delta: float, rounds: int) -> float:
    """The smallest noise (to a thousandth of it) with which so many rounds cost at most ``target``."""
    from scipy.optimize import brentq  # not for every command that knows of this rule

    low, high = 0.5, 1.0
    while epsilon(q, high, delta, rounds) > target:
        low, high = high, 2 * high
        if high > LARGEST_NOISE:
            raise ConfigError(f"epsilon = {target:g}: even noise {LARGEST_NOISE:g} does not reach it")
    while epsilon(q, low, delta, rounds) <= target:
        low, high = low / 2, low
        if low < SMALLEST_NOISE:
            return high
    near = 5e-4 * low
    above = brentq(lambda noise: math.log(epsilon(q, noise, delta, rounds) / target), low, high, xtol=near)
    return float(above + near)


@cache
def _one_round(q: float, noise: float) -> Any:
    made = _part("pld.privacy_loss_distribution.from_gaussian_mechanism")
    grid = GRID / min(noise, 1.0) ** 2
    return made(noise, value_discretization_interval=grid, sampling_prob=q, use_connect_dots=True)


def _event(q: float, noise: float) -> Any:
    return _part("PoissonSampledDpEvent")(q, _part("GaussianDpEvent")(noise))


def _relation() -> Any:
    return _part("NeighboringRelation").ADD_OR_REMOVE_ONE


def _part(path: str) -> Any:
    *folders, name = path.split(".")
    return load(":".join((".".join(("dp_accounting", *folders)), name)), "algorithm 'dp'", "privacy")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the package's remarks on orders that it leaves out."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
