"""How samples lie in memory: the same strides and the same alignment, wherever they came from.

Images have the shape [n, c, h, w] but lie in memory as [n, h, w, c] (channels-last), which is what
convolutions on a CPU like best. Plain `x[idx]` keeps that order, `x.index_select(0, idx)` loses it;
`rows` keeps it and is the fastest of the three, because whole images are copied in one piece.
"""

from __future__ import annotations

from torch import Tensor

from undrift.core.tree import ALIGNMENT


def rows(x: Tensor, idx: Tensor) -> Tensor:
    """Gather samples `idx` of `x` along the first axis; images come out in channels-last memory."""
    if x.dim() != 4:
        return x.index_select(0, idx)
    return x.permute(0, 2, 3, 1).index_select(0, idx).permute(0, 3, 1, 2)


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
