"""Rendered characters for FSLsyn on EMNIST: 15 images a class in a cursive font (FSL, journal).

Each character is drawn at 100, 110 and 120 pt on a canvas of 2 in x 2 in, turned by -20, -10, 0, 10 and 20 degrees, and
reduced to 28 x 28: white on black and upright, as EMNIST's images are once loaded. No font comes with this package; any
cursive TrueType or OpenType font will do. Debian and Ubuntu have one under the Open Font Licence in the package
``fonts-dancingscript``.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.core.files import write_atomic
from undrift.errors import DataError, InputError

CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt"
"""The 47 classes of EMNIST-Balanced in their order."""
SIZES, ANGLES = (100, 110, 120), (-20, -10, 0, 10, 20)
POINTS, SIDE = 144, 28
FONTS = (
    "DancingScript-Regular.otf",
    "DancingScript-Regular.ttf",
    "DancingScript[wght].ttf",
    "Pecita.otf",
    "KaushanScript-Regular.otf",
    "Z003-MediumItalic.otf",
    "Z003-MediumItalic.t1",
    "AppleChancery.ttf",
)
PLACES = (
    "/usr/share/fonts",
    "/usr/local/share/fonts",
    "~/.fonts",
    "~/.local/share/fonts",
    "/Library/Fonts",
    "/System/Library/Fonts",
)


def find_font() -> Path:
    """A cursive font of this system."""
    for place in PLACES:
        folder = Path(place).expanduser()
        for name in FONTS if folder.is_dir() else ():
            if found := sorted(folder.rglob(name.replace("[", "[[]"))):
                return found[0]
    raise DataError("no cursive font found: give one with --font, or install one (Debian: fonts-dancingscript)")


def render(font: Path, characters: str = CHARACTERS) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images [n, 28, 28, 1] and labels, 15 for each character."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise InputError("rendered characters need Pillow: install undrift[report]") from None
    images, labels = [], []
    for size in SIZES:
        try:
            face = ImageFont.truetype(str(font), size)
        except OSError:
            raise DataError(f"{font}: not a font that can be read") from None
        for label, character in enumerate(characters):
            upright = _drawn(Image, ImageDraw, face, character)
            for angle in ANGLES:
                turned = upright.rotate(angle, resample=Image.Resampling.BICUBIC)
                small = turned.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
                images.append(np.asarray(small, dtype=np.uint8)[..., None])
                labels.append(label)
    order = np.argsort(labels, kind="stable")
    return np.stack(images)[order], np.array(labels, dtype=np.int64)[order]


def write(path: Path, font: Path | None = None, classes: int = len(CHARACTERS)) -> int:
    """Server data for ``server_data.source = "file"``: the first ``classes`` characters; returns how many images."""
    x, y = render(font or find_font(), CHARACTERS[:classes])
    held = io.BytesIO()
    np.savez_compressed(held, x=x, y=y)
    write_atomic(path, held.getvalue())
    return len(y)


def _drawn(image: Any, draw: Any, face: Any, character: str) -> Any:
    """One character in the middle of the canvas."""
    canvas = image.new("L", (POINTS, POINTS), 0)
    left, top, right, bottom = face.getbbox(character)
    place = ((POINTS - right - left) / 2, (POINTS - bottom - top) / 2)
    draw.Draw(canvas).text(place, character, fill=255, font=face)
    return canvas
