"""Flip and crop: every result is one of the 2 x 9 x 9 allowed pictures, all of them equally often."""

from __future__ import annotations

import numpy as np
import torch

from undrift.data import flip_crop


def variants(image: torch.Tensor) -> dict[tuple[int, int, int], torch.Tensor]:
    """The pictures that may come of one image: flipped or not, every window of the padded image."""
    found = {}
    for flip in (0, 1):
        padded = torch.nn.functional.pad(image.flip(2) if flip else image, (4, 4, 4, 4))
        for top in range(9):
            for left in range(9):
                found[flip, top, left] = padded[:, top : top + image.shape[1], left : left + image.shape[2]]
    return found


def test_every_result_is_an_allowed_picture() -> None:
    image = torch.arange(1.0, 3 * 10 * 12 + 1).reshape(3, 10, 12)
    batch = image.repeat(1500, 1, 1, 1).contiguous(memory_format=torch.channels_last)
    kept = batch.clone()
    out = flip_crop(batch, torch.Generator().manual_seed(0))
    assert out.shape == batch.shape
    assert out.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch, kept)  # the input is left alone
    keys, pictures = zip(*variants(image).items(), strict=True)
    same = (out[:, None] == torch.stack(pictures)[None]).flatten(2).all(2)
    assert (same.sum(1) == 1).all()
    flip, top, left = np.array(keys)[same.int().argmax(1).numpy()].T
    assert abs(flip.mean() - 0.5) < 0.06
    for shift in (top, left):
        assert abs(np.bincount(shift, minlength=9) - 1500 / 9).max() < 60  # deviation: 12
    assert abs(np.corrcoef([flip, top, left]) - np.eye(3)).max() < 0.1


def test_samples_are_not_mixed() -> None:
    batch = torch.arange(1.0, 6.0).reshape(5, 1, 1, 1).expand(5, 2, 8, 8)
    out = flip_crop(batch, torch.Generator().manual_seed(1))
    for i, picture in enumerate(out):
        assert set(picture.unique().tolist()) <= {0.0, i + 1.0}
        assert picture.max() == i + 1


def test_randomness_comes_from_the_generator_alone() -> None:
    batch = torch.randn(16, 3, 8, 8)
    torch.manual_seed(0)
    before = torch.random.get_rng_state()
    a = flip_crop(batch, torch.Generator().manual_seed(5))
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(1)
    assert torch.equal(a, flip_crop(batch, torch.Generator().manual_seed(5)))
    assert not torch.equal(a, flip_crop(batch, torch.Generator().manual_seed(6)))
