"""Residual networks for small images (He et al., 2016), cut into their residual groups.

The top-level children are `group1` (stem and first group), `group2`, … and `head`, so that a split model
can be cut between groups.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from undrift.models.layers import GlobalPool
from undrift.models.stack import Shape, image_shape

__all__ = ["NORMS", "Residual", "resnet8", "resnet18"]

NORMS = ("batch", "group")


def resnet8(shape: Shape, classes: int, norm: str = "batch", width: float = 1.0) -> nn.Sequential:
    """ResNet-8 of FedPVR: 16, 32, 64 channels (times `width`), one block a group."""
    return _resnet("resnet8", shape, classes, norm, channels=_scaled((16, 32, 64), width), depth=1)


def resnet18(shape: Shape, classes: int, norm: str = "batch", width: float = 1.0) -> nn.Sequential:
    """ResNet-18 of MiniBatch-SFL: 64 to 512 channels (times `width`), two blocks a group, 3x3 stem without pooling."""
    return _resnet("resnet18", shape, classes, norm, channels=_scaled((64, 128, 256, 512), width), depth=2)


def _scaled(channels: Sequence[int], width: float) -> tuple[int, ...]:
    """Even numbers, so that a group norm can divide them."""
    return tuple(max(2, 2 * round(c * width / 2)) for c in channels)


class Residual(nn.Module):
    """Basic block: `relu(norm2(conv2(relu(norm1(conv1(x))))) + shortcut(x))`.

    The shortcut is the identity, or a strided 1x1 convolution with its norm where the shape changes.
    """

    def __init__(self, inside: int, outside: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = _conv(inside, outside, 3, stride)
        self.norm1 = _norm(norm, outside)
        self.conv2 = _conv(outside, outside, 3, 1)
        self.norm2 = _norm(norm, outside)
        self.changes = stride != 1 or inside != outside
        if self.changes:
            self.shortcut_conv = _conv(inside, outside, 1, stride)
            self.shortcut_norm = _norm(norm, outside)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        # In place where no backward pass reads the value: a norm layer keeps its input, not its output.
        y = self.norm1(self.conv1(x)).relu_()
        y = self.norm2(self.conv2(y))
        y += self.shortcut_norm(self.shortcut_conv(x)) if self.changes else x
        out: Tensor = y.relu_()
        return out


def _resnet(name: str, shape: Shape, classes: int, norm: str, *, channels: Sequence[int], depth: int) -> nn.Sequential:
    inside = image_shape(name, shape)[0]
    stem = _conv(inside, channels[0], 3, 1)
    first = OrderedDict[str, nn.Module](stem=stem, stem_norm=_norm(norm, channels[0]), stem_relu=nn.ReLU(inplace=True))
    net = OrderedDict[str, nn.Module]()
    inside = channels[0]
    for g, outside in enumerate(channels, start=1):
        group = first if g == 1 else OrderedDict[str, nn.Module]()
        for b in range(1, depth + 1):
            stride = 2 if g > 1 and b == 1 else 1
            group[f"block{b}"] = Residual(inside, outside, stride, norm)
            inside = outside
        net[f"group{g}"] = nn.Sequential(group)
    net["head"] = nn.Sequential(OrderedDict[str, nn.Module](pool=GlobalPool(), dense=nn.Linear(inside, classes)))
    return nn.Sequential(net)


def _conv(inside: int, outside: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inside, outside, kernel, stride, padding=kernel // 2, bias=False)


def _norm(norm: str, channels: int) -> nn.Module:
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    # Wu & He (2018) find 16 channels a group as good as 32 groups; two groups at least for the narrow layers.
    return nn.GroupNorm(max(2, channels // 16) if channels % 16 == 0 else 2, channels)
