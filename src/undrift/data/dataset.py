"""What a data set is: normalised training and test tensors, and what they were normalised with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.data.samples import InMemory


@dataclass(frozen=True)
class DataSet:
    """Training and test data of one task: float32 inputs, int64 labels 0 … classes-1.

    `client` holds one id for each training row where the data say who owns it. `mean` and `std` are
    what images were normalised with, on the scale 0 … 1, one number for each channel (None: the
    inputs were used as they are).
    """

    name: str
    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    client: NDArray[Any] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def train(self) -> InMemory:
        """The training samples."""
        return InMemory(self.x_train, self.y_train)

    @property
    def test(self) -> InMemory:
        """The test samples."""
        return InMemory(self.x_test, self.y_test)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (c, h, w) of an image, (d,) of a vector."""
        return tuple(self.x_train.shape[1:])

    @property
    def labels(self) -> NDArray[np.int64]:
        """The training labels as an array, for `partition` and `server_indices`."""
        array: NDArray[np.int64] = self.y_train.numpy()
        return array


def channel_stats(pixels: NDArray[np.uint8], scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel of [n, h, w, c] pixels, on the scale 0 … 1.

    A channel that never changes gets the deviation 1, so that normalising it is not a division by 0.
    """
    levels = np.arange(256) / scale
    means, stds = [], []
    for channel in range(pixels.shape[-1]):
        share = np.bincount(pixels[..., channel].ravel(), minlength=256) / pixels[..., channel].size
        mean = float(share @ levels)
        means.append(mean)
        stds.append(float(np.sqrt(share @ (levels - mean) ** 2)) or 1.0)
    return tuple(means), tuple(stds)


def normalised(
    pixels: NDArray[np.uint8], mean: tuple[float, ...], std: tuple[float, ...], scale: float = 255.0
) -> Tensor:
    """Turn [n, h, w, c] pixels into a float32 tensor [n, c, h, w] in channels-last memory."""
    x = torch.from_numpy(pixels.astype(np.float32, order="C"))
    x.div_(scale).sub_(torch.tensor(mean)).div_(torch.tensor(std))
    return x.permute(0, 3, 1, 2)
