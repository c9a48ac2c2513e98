"""Augmentation of image batches, as in FedPVR: random horizontal flip, random crop after padding."""

from __future__ import annotations

import torch
from torch import Tensor

PAD = 4


def flip_crop(x: Tensor, generator: torch.Generator) -> Tensor:
    """Flip each image [b, c, h, w] left-right with probability 1/2 and shift it by up to 4 pixels.

    What a shift uncovers is filled with zeros; in normalised data zero is the mean colour, not
    black. All randomness comes from `generator`; the result lies in channels-last memory.
    """
    b, c, h, w = x.shape
    draw = torch.rand(3, b, generator=generator, device=generator.device).to(x.device)
    flip = draw[0] < 0.5
    top, left = (draw[1:] * (2 * PAD + 1)).long().clamp_(max=2 * PAD)
    padded = x.new_zeros(b, h + 2 * PAD, w + 2 * PAD, c)
    padded[:, PAD : PAD + h, PAD : PAD + w] = x.permute(0, 2, 3, 1)
    across = torch.arange(w, device=x.device)
    column = left[:, None] + torch.where(flip[:, None], w - 1 - across, across)
    row = top[:, None] + torch.arange(h, device=x.device)
    row += (torch.arange(b, device=x.device) * (h + 2 * PAD))[:, None]
    place = row[:, :, None] * (w + 2 * PAD) + column[:, None, :]
    cropped = padded.view(-1, c).index_select(0, place.view(-1))
    return cropped.view(b, h, w, c).permute(0, 3, 1, 2)
