"""Networks without residual connections, layer by layer as the papers list them.

Where a paper writes "conv, ReLU, max pool" the code says `conv().pool().relu()`, and "dropout, flatten" is
`flatten().dropout()`: the same function, faster (see `Stack.pool` and `Flatten`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from undrift.models.stack import Shape, Stack

__all__ = ["cnn_adc", "cnn_cifar", "cnn_emnist", "cnn_split", "linear", "mlp", "vgg11"]


def cnn_emnist(shape: Shape, classes: int) -> nn.Sequential:
    """EMNIST network of the server-learning papers (FSL, conference and journal)."""
    net = Stack("cnn-emnist", shape)
    net.conv(32).relu()
    net.conv(64, padding=0).pool().relu()
    net.flatten().dropout(0.25).dense(128).relu()
    net.dropout(0.5).dense(classes)
    return net.sequential()


def cnn_cifar(shape: Shape, classes: int) -> nn.Sequential:
    """CIFAR-10 network of the server-learning papers (FSL, conference and journal)."""
    net = Stack("cnn-cifar", shape)
    net.conv(32).pool().relu()
    net.conv(64).pool().relu()
    net.flatten().dropout(0.25).dense(128).relu()
    net.dropout(0.5).dense(classes)
    return net.sequential()


def cnn_adc(shape: Shape, classes: int) -> nn.Sequential:
    """FedADC's network: 4 convolutional and 4 dense layers, max pooling, no normalisation."""
    net = Stack("cnn-adc", shape)
    net.conv(64).relu().conv(64).pool().relu()
    net.conv(128).relu().conv(128).pool().relu()
    net.flatten().dense(512).relu().dense(256).relu().dense(128).relu().dense(classes)
    return net.sequential()


def cnn_split(shape: Shape, classes: int) -> nn.Sequential:
    """MiniBatch-SFL's CNN of 4 layers, for 28x28x1 or 32x32x3 images."""
    net = Stack("cnn-split", shape)
    net.conv(32).pool().relu()
    net.conv(64).pool().relu()
    net.flatten().dense(128).relu().dense(classes)
    return net.sequential()


def vgg11(shape: Shape, classes: int, width: float = 1.0) -> nn.Sequential:
    """VGG-11 (Simonyan & Zisserman, 2015) for 32x32 images, as in FedPVR.

    `width` scales the channels of every convolution and the hidden dense layers.
    """

    def scaled(channels: int) -> int:
        return max(1, round(width * channels))

    net = Stack("vgg11", shape)
    for group in ((64,), (128,), (256, 256), (512, 512), (512, 512)):
        for channels in group[:-1]:
            net.conv(scaled(channels)).relu()
        net.conv(scaled(group[-1])).pool().relu()
    net.flatten()
    for _ in range(2):
        net.dropout(0.5).dense(scaled(512)).relu()
    net.dense(classes)
    return net.sequential()


def mlp(shape: Shape, classes: int, hidden: Sequence[int] = (200,)) -> nn.Sequential:
    """Multi-layer perceptron with ReLU and the given hidden widths."""
    net = Stack("mlp", shape).flatten()
    for width in hidden:
        net.dense(width).relu()
    return net.dense(classes).sequential()


def linear(shape: Shape, classes: int) -> nn.Sequential:
    """Multinomial logistic regression."""
    return Stack("linear", shape).flatten().dense(classes).sequential()
