"""Random streams named by what they are for: (seed, purpose, round, client), never global state.

So a draw depends neither on the algorithm nor on the engine, the number of workers or an interruption.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import torch

_NAMES = (
    "cohort",
    "order",
    "noise",
    "server-order",
    "server-noise",
    "share",
    "pretrain",
    "main-order",
    "measure",
    "validation",
    "augment",
    "smashed",
    "probe",
    "partition",
    "server-data",
    "limit",
    "synthetic",
    "hook",
    "item",
    "client-test",
    "test-rows",
    "attack",
)
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


@dataclass(frozen=True)
class HookRandom:
    """Where the random numbers of a rule's hook come from: (seed, rule, purpose, round, client)."""

    seed: int
    round: int
    client: int | None = None
    """None: the server."""
    rule: str = ""

    def generator(self, purpose: str = "", device: torch.device | str = "cpu") -> torch.Generator:
        """A generator of its own for this rule and purpose, at this client in this round."""
        words = (zlib.crc32(text.encode()) for text in (self.rule, purpose))
        client = 0 if self.client is None else self.client + 1
        made = torch.Generator(device=device)
        made.manual_seed(torch_seed(self.seed, "hook", *words, self.round, client))
        return made
