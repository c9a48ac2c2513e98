"""What clients and main server say to each other, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Smashed:
    """Up: the activations of a minibatch at the cut, and its labels."""

    client: int
    z: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Gradient:
    """Down: the gradient of the client's own mean loss with respect to what it sent."""

    client: int
    dz: Tensor


@dataclass
class Tally:
    """Bytes sent, counted from the tensors themselves."""

    down: int = 0
    up: int = 0

    def count(self, message: Smashed | Gradient) -> None:
        """Count one message."""
        if isinstance(message, Smashed):
            self.up += message.z.nbytes + message.labels.nbytes
        else:
            self.down += message.dz.nbytes
