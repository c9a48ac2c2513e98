"""Images in folders: one folder for each class, below ``train`` and ``test``, or with test images drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from undrift.core.streams import stream
from undrift.data.dataset import DataSet, channel_stats, normalised
from undrift.data.samples import InMemory
from undrift.errors import ConfigError, DataError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")
Labelled = list[tuple[Path, int]]


def read_images(path: Path, *, size: int | None = None, test_share: float = 0.2, seed: int = 0) -> DataSet:
    """The images below a folder; ``size``: width and height that all are brought to."""
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError("data.name = 'images' needs Pillow: pip install 'undrift[images]'") from None
    if not path.is_dir():
        raise DataError(f"{path}: no such folder")
    train, test, names = _listed(path, test_share, seed)
    pixels = [_pixels(part, size, Image) for part in (train, test)]
    if pixels[0].shape[1:] != pixels[1].shape[1:]:
        raise DataError(
            f"{path}: training images {_shape(pixels[0])} and test images {_shape(pixels[1])} must be alike"
        )
    mean, std = channel_stats(pixels[0], 255.0)
    parts = [
        InMemory(normalised(images, mean, std), torch.tensor([label for _, label in listed]))
        for images, listed in zip(pixels, (train, test), strict=True)
    ]
    return DataSet("images", parts[0], parts[1], len(names), None, mean, std)


def _listed(path: Path, test_share: float, seed: int) -> tuple[Labelled, Labelled, list[str]]:
    """Training and test images with their labels, and the classes' names."""
    if (path / "train").is_dir() and (path / "test").is_dir():
        names = _classes(path / "train")
        if other := sorted(set(_classes(path / "test")) - set(names)):
            raise DataError(f"{path / 'test'}: class {other[0]!r} has no training images")
        return _labelled(path / "train", names), _labelled(path / "test", names), names
    names = _classes(path)
    files = _labelled(path, names)
    held = max(1, round(test_share * len(files)))
    if held >= len(files):
        raise DataError(f"data.test_share = {test_share}: of {len(files)} images none would be left for training")
    order = stream(seed, "test-rows").permutation(len(files))
    train, test = ([files[place] for place in np.sort(part)] for part in (order[held:], order[:held]))
    return train, test, names


def _classes(folder: Path) -> list[str]:
    names = sorted(item.name for item in folder.iterdir() if item.is_dir())
    if len(names) < 2:
        raise DataError(f"{folder}: a folder for each class is needed (found: {', '.join(names) or 'none'})")
    return names


def _labelled(folder: Path, names: Sequence[str]) -> Labelled:
    files = [
        (file, label)
        for label, name in enumerate(names)
        for file in sorted((folder / name).glob("*"))
        if file.suffix.lower() in ENDINGS
    ]
    if not files:
        raise DataError(f"{folder}: no images ({', '.join(ENDINGS)})")
    return files


def _pixels(files: Labelled, size: int | None, image: Any) -> NDArray[np.uint8]:
    """All images as [n, h, w, c]: grey where all are, else in colour."""
    opened = [_opened(file, size, image) for file, _ in files]
    grey = all(one.mode in ("L", "1") for one in opened)
    arrays = [np.asarray(one.convert("L" if grey else "RGB"), dtype=np.uint8) for one in opened]
    for (file, _), array in zip(files, arrays, strict=True):
        if array.shape != arrays[0].shape:
            raise DataError(
                f"{file}: {array.shape[1]}x{array.shape[0]} pixels, {files[0][0].name} has "
                f"{arrays[0].shape[1]}x{arrays[0].shape[0]}; data.size brings all to one size"
            )
    stacked = np.stack(arrays)
    return stacked[..., None] if grey else stacked


def _opened(file: Path, size: int | None, image: Any) -> Any:
    try:
        with image.open(file) as opened:
            opened.load()
            return opened.copy() if size is None else opened.resize((size, size))
    except Exception as error:  # Pillow has many kinds of errors for a damaged file
        raise DataError(f"{file}: not a readable image ({type(error).__name__})") from None


def _shape(pixels: NDArray[np.uint8]) -> str:
    return f"[{', '.join(map(str, pixels.shape[1:]))}]"
