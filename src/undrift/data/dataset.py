"""What a data set is: normalised training and test tensors, and how batches are gathered from them.

Images have the shape [n, c, h, w] but lie in memory as [n, h, w, c] (channels-last), which is what
convolutions on a CPU like best. Plain `x[idx]` keeps that order, `x.index_select(0, idx)` loses it;
`rows` keeps it and is the fastest of the three, because whole images are copied in one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from undrift.core.tree import ALIGNMENT


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
    def shape(self) -> tuple[int, ...]:
        """The shape of one input: (c, h, w) of an image, (d,) of a vector."""
        return tuple(self.x_train.shape[1:])

    @property
    def labels(self) -> NDArray[np.int64]:
        """The training labels as an array, for `partition` and `server_indices`."""
        array: NDArray[np.int64] = self.y_train.numpy()
        return array


def rows(x: Tensor, idx: Tensor) -> Tensor:
    """Gather samples `idx` of `x` along the first axis; images come out in channels-last memory."""
    if x.dim() != 4:
        return x.index_select(0, idx)
    return x.permute(0, 2, 3, 1).index_select(0, idx).permute(0, 3, 1, 2)


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


def laid_out(x: Tensor) -> Tensor:
    """The same numbers with the strides and the alignment that all data have, however they came here.

    Images [n, c, h, w] lie as [n, h, w, c]. An axis of length 1 may have any stride and still count as contiguous,
    but libraries then compute in other ways, which shows in the last bit: so strides are set, not left to chance.
    """
    dense = (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).contiguous()
    if dense.device.type == "cpu" and dense.data_ptr() % ALIGNMENT:
        dense = dense.clone()
    if x.dim() != 4:
        return dense.as_strided(x.shape, _strides(tuple(x.shape)))
    n, c, h, w = x.shape
    return dense.as_strided((n, c, h, w), (h * w * c, 1, w * c, c))


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of a dense tensor of this shape."""
    strides = [1]
    for length in reversed(shape[1:]):
        strides.append(strides[-1] * length)
    return tuple(reversed(strides)) if shape else ()
