"""Parameter-free layers that compute the textbook values with less work on a CPU.

Activations are expected in channels-last memory; other layouts give the same values, more slowly.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["Dropout", "Flatten", "GlobalPool"]

_INT64_MIN = torch.iinfo(torch.int64).min


class Flatten(nn.Module):
    """Images (n, c, h, w) to rows (n, h*w*c); anything else to rows in its own order.

    The features run over rows, columns, channels: in channels-last memory that is a view, where the order
    (c, h, w) of `nn.Flatten` costs a copy in each direction. It only permutes the inputs of the next
    dense layer, whose initial weights are independent and alike: the same model, other names for its inputs.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Flatten all but the first dimension."""
        return (x.permute(0, 2, 3, 1) if x.dim() == 4 else x).flatten(1)


class GlobalPool(nn.Module):
    """Mean over rows and columns: (n, c, h, w) to (n, c).

    Taken over pixels as rows, so that the gradient comes back in channels-last memory; that of
    `nn.AdaptiveAvgPool2d` does not, and every layer before it then pays for reordering.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Average every channel."""
        return x.permute(0, 2, 3, 1).flatten(1, 2).mean(1)


class Dropout(nn.Module):
    """Inverted dropout: in training an entry is 0 with probability `p`, else scaled by `1/(1-p)`.

    Equal in distribution to `nn.Dropout`, and like it drawn from torch's global generator. Where `256*p` is a
    whole number (all our models), one 64-bit draw decides about eight entries, which is exact and makes
    the mask in a tenth of the time on a CPU. Entries are decided in the logical order of the input, whatever
    its memory layout.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"dropout: p = {p} is not in [0, 1)")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Drop entries in training, do nothing in evaluation."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu" or not (256 * self.p).is_integer():
            return F.dropout(x, self.p)
        return x * _kept(x, int(256 * self.p)).mul_(1 / (1 - self.p))

    def extra_repr(self) -> str:
        """What `print` shows."""
        return f"p={self.p}"


def _kept(x: Tensor, dropped: int) -> Tensor:
    """1 where an entry stays, 0 with probability `dropped/256`; shape and type of `x`."""
    words = torch.empty((x.numel() + 7) // 8, dtype=torch.int64).random_(_INT64_MIN, None)
    kept = words.view(torch.int8)[: x.numel()].ge_(dropped - 128)  # in place: no slow conversion from bool
    return kept.view(x.shape).to(x.dtype)
