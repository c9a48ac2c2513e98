"""What a data set is: training and test samples, and what they were normalised with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core.nested import shape_of
from undrift.data.samples import InMemory, Samples, labels_of
from undrift.errors import ConfigError, DataError


@dataclass(frozen=True)
class DataSet:
    """Training and test samples of one task.

    `classes` is how many outputs a model of these data has: one for each class, or for each number that a target
    holds. `client` holds one id for each training row where the data say who owns it. `mean` and `std` are what
    images were normalised with, on the scale 0 … 1, one number for each channel (None: the inputs were used as
    they are). `server` holds the server's own samples, where the data bring some.
    """

    name: str
    train: Samples
    test: Samples | None
    classes: int
    client: NDArray[Any] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    server: Samples | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (c, h, w) of an image, (d,) of a vector."""
        inputs = self.train.inputs if isinstance(self.train, InMemory) else self.train.take(np.array([0]))[0]
        if not isinstance(inputs, Tensor):
            raise ConfigError(f"inputs are {shape_of(inputs)}: a model of your own is needed ('package.module:name')")
        return tuple(inputs.shape[1:])

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """The training labels, for `partition` and `server_indices`; None where targets are no classes."""
        return labels_of(self.train)

    @property
    def x_train(self) -> Tensor:
        """The training inputs, where they are one tensor in memory (likewise the other three)."""
        return _tensor(self.train, "inputs")

    @property
    def y_train(self) -> Tensor:
        """The training targets."""
        return _tensor(self.train, "targets")

    @property
    def x_test(self) -> Tensor:
        """The test inputs."""
        return _tensor(self._test(), "inputs")

    @property
    def y_test(self) -> Tensor:
        """The test targets."""
        return _tensor(self._test(), "targets")

    def _test(self) -> Samples:
        if self.test is None:
            raise DataError(f"{self.name}: there are no test data")
        return self.test


def _tensor(samples: Samples, part: str) -> Tensor:
    found = getattr(samples, part, None)
    if not isinstance(found, Tensor):
        raise DataError(f"{part}: one tensor in memory is needed here")
    return found


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
