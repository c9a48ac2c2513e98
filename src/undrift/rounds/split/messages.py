"""What clients and main server say to each other in a split round, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from undrift.core.tree import Tree


@dataclass(frozen=True)
class Smashed:
    """Up: the activations of a minibatch at the cut, and its labels."""

    client: int
    z: Tensor
    labels: Tensor
    stream: Tensor
    """The state of the client's random stream, with which its masks go on in the server part; not sent in reality."""


@dataclass(frozen=True)
class Gradient:
    """Down: the gradient of the client's own mean loss with respect to what it sent."""

    client: int
    dz: Tensor
    loss: float
    stream: Tensor
    """The state of the client's random stream after the server part."""


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


@dataclass
class Sums:
    """Loss, samples and steps of a client."""

    loss: float = 0.0
    """Summed over samples."""
    visits: int = 0
    steps: int = 0

    def count(self, loss: float, samples: int) -> None:
        """Count one step in."""
        self.loss += loss * samples
        self.visits += samples
        self.steps += 1


@dataclass(frozen=True)
class ClientUpdate:
    """What a client hands in at a synchronisation."""

    y: Tensor
    buffers: Tensor
    up: Tree
    kept: Tree
    steps: int
    """Steps of this period, as the rule was told."""
    period: Sums
    """Since the last synchronisation."""
    total: Sums
    """Since the round began."""
    tally: Tally


@dataclass(frozen=True)
class MainUpdate:
    """The main server's part at a synchronisation."""

    weights: Tensor
    buffers: Tensor
    copies: dict[int, Tensor]
    """Each client's copy of the server part, where clients have copies."""
    statistics: dict[int, Tensor]
    """Running statistics of the server part as single clients' batches made them, where they are no joint batch."""
