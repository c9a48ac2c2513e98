"""How the classes are spread over the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def label_counts(labels: NDArray[Any], parts: Sequence[NDArray[np.int64]], classes: int) -> NDArray[np.int64]:
    """Count the samples of each class at each client: an array [clients, classes]."""
    client = np.repeat(np.arange(len(parts)), [len(own) for own in parts])
    mine = labels[np.concatenate(parts)]
    counts = np.bincount(client * classes + mine, minlength=len(parts) * classes)
    return counts.reshape(len(parts), classes)
