"""A convolutional network small enough for a benchmark of many runs."""

from __future__ import annotations

from torch import nn


def small_cnn() -> nn.Sequential:
    """For colour images of 32 x 32 in ten classes: two convolutions with strides, one dense layer."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 8 * 8, 10),
    )
