"""Random streams named by what they are for: (seed, purpose, round, client), never global state.

So a draw depends neither on the algorithm nor on the engine, the number of workers or an interruption.
"""

from __future__ import annotations

import numpy as np

_NAMES = (
    "cohort", "order", "noise", "server-order", "server-noise", "share", "pretrain", "main-order", "measure",
    "validation", "augment", "smashed", "probe", "partition", "server-data", "limit", "synthetic",
)  # fmt: skip
_PURPOSES = {name: number for number, name in enumerate(_NAMES, start=101)}
"""All purposes of the package, each with a number of its own; new ones are added at the end."""


def _sequence(seed: int, purpose: str, keys: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence([seed, _PURPOSES[purpose], *keys])


def stream(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """A NumPy generator of its own for this purpose and these keys."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, purpose, keys)))


def torch_seed(seed: int, purpose: str, *keys: int) -> int:
    """A seed for one of torch's generators."""
    return int(_sequence(seed, purpose, keys).generate_state(1, np.uint64)[0] >> np.uint64(1))
