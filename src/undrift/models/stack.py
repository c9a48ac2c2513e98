"""A builder that stacks layers into one `nn.Sequential`, keeping track of names and shapes."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Self

from torch import nn

from undrift.errors import ConfigError
from undrift.models.layers import Dropout, Flatten

__all__ = ["Stack", "image_shape"]

Shape = tuple[int, ...]


def image_shape(name: str, shape: Shape) -> tuple[int, int, int]:
    """Return `shape` as (channels, height, width), or refuse it for the model `name`."""
    if len(shape) != 3:
        raise ConfigError(
            f"model.name = {name!r} needs images of shape (channels, height, width); the data have {shape}"
        )
    return shape[0], shape[1], shape[2]


class Stack:
    """Layers one after the other; each is named after its kind and its number among that kind."""

    def __init__(self, name: str, shape: Shape) -> None:
        self.name, self.input, self.shape = name, shape, shape
        self.layers: OrderedDict[str, nn.Module] = OrderedDict()
        self.counts: dict[str, int] = {}

    def conv(self, channels: int, *, padding: int = 1) -> Self:
        """3x3 convolution with bias; `padding` 1 keeps the size, 0 takes only whole windows."""
        c, h, w = image_shape(self.name, self.shape)
        shrink = 2 - 2 * padding
        self._add("conv", nn.Conv2d(c, channels, 3, padding=padding), (channels, h - shrink, w - shrink))
        return self

    def pool(self) -> Self:
        """2x2 max pooling.

        Put it before the ReLU: the two commute, values and gradients alike (ties go to the first maximum in
        both orders), and the ReLU then has a quarter of the work.
        """
        c, h, w = image_shape(self.name, self.shape)
        self._add("pool", nn.MaxPool2d(2), (c, h // 2, w // 2))
        return self

    def relu(self) -> Self:
        """ReLU."""
        self._add("relu", nn.ReLU(), self.shape)
        return self

    def dropout(self, p: float) -> Self:
        """Inverted dropout; behind `flatten` it is the same as in front of it."""
        self._add("dropout", Dropout(p), self.shape)
        return self

    def flatten(self) -> Self:
        """Make rows of features."""
        self._add("flatten", Flatten(), (math.prod(self.shape),))
        return self

    def dense(self, width: int) -> Self:
        """Fully connected layer with bias."""
        self._add("dense", nn.Linear(self.shape[0], width), (width,))
        return self

    def sequential(self) -> nn.Sequential:
        """Return the finished model."""
        return nn.Sequential(self.layers)

    def _add(self, kind: str, layer: nn.Module, shape: Shape) -> None:
        if min(shape) < 1:
            raise ConfigError(f"model.name = {self.name!r}: images of shape {self.input} are too small for its pooling")
        self.counts[kind] = self.counts.get(kind, 0) + 1
        only_one = kind == "flatten"
        self.layers[kind if only_one else f"{kind}{self.counts[kind]}"] = layer
        self.shape = shape
