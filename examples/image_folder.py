"""Images read from folders at every visit, with random flips: a data set that may be larger than memory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Dataset

import undrift as ud


class Folder(Dataset[tuple[Tensor, int]]):
    """Each image is opened when it is visited; flips are drawn from torch's default generator."""

    def __init__(self, folder: Path, flips: bool = True) -> None:
        self.files, self.flips = sorted(folder.glob("*.png")), flips

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        with Image.open(self.files[place]) as image:
            x = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255)[None]
        flipped = self.flips and torch.rand(()) < 0.5
        return x.flip(2) if flipped else x, int(self.files[place].stem.split("-")[1])


def write_images(folder: Path, count: int, seed: int) -> Path:
    """Bars that lie (class 0) or stand (class 1)."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for number in range(count):
        pixels, label, place = rng.integers(0, 80, (12, 12), dtype=np.uint8), number % 2, rng.integers(12)
        pixels[(slice(None), place) if label else place] = 255
        Image.fromarray(pixels).save(folder / f"{number:03d}-{label}.png")
    return folder


def run(**settings: Any) -> ud.Result:
    """Three clients with a folder each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(32, 2))
    with tempfile.TemporaryDirectory() as place:
        folders = [write_images(Path(place) / f"client{n}", 40, n) for n in range(3)]
        test = Folder(write_images(Path(place) / "test", 60, 9), flips=False)
        given = {"rounds": 6, "lr": 0.1, "batch_size": 10, **settings}
        return ud.simulate(model, [Folder(folder) for folder in folders], "fedavg", test_data=test, lazy=True, **given)


if __name__ == "__main__":
    print(run())
