"""Rendered characters."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from undrift.errors import DataError
from undrift.recipes.glyphs import CHARACTERS, render, write

matplotlib = pytest.importorskip("matplotlib")
FONT = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"


def test_fifteen_images_a_class(tmp_path: Path) -> None:
    path = tmp_path / "emnist" / "glyphs.npz"
    assert write(path, FONT, classes=4) == 60
    arrays = np.load(path)
    assert arrays["x"].shape == (60, 28, 28, 1)
    assert arrays["x"].dtype == np.uint8
    assert np.bincount(arrays["y"]).tolist() == [15] * 4
    assert len(np.unique(arrays["x"].reshape(60, -1), axis=0)) == 60


def test_characters_are_upright_white_and_centred() -> None:
    x, y = render(FONT, "L")
    straight = x[2, ..., 0].astype(float)
    assert straight.max() > 200
    assert straight[:2].max() < 60
    rows, columns = np.nonzero(straight > 128)
    assert straight[rows.max()].sum() > straight[rows.min()].sum()
    assert abs((columns.min() + columns.max()) / 2 - 13.5) < 2
    assert y.tolist() == [0] * 15


def test_emnist_balanced_has_these_classes() -> None:
    assert len(CHARACTERS) == len(set(CHARACTERS)) == 47


def test_what_is_no_font_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.ttf").write_text("no")
    with pytest.raises(DataError, match="not a font"):
        render(tmp_path / "x.ttf", "A")
