"""The server's data: how many of each class, from whom, and files that do not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from undrift.data import DataSet, load, load_server_file, partition, server_indices
from undrift.data.samples import InMemory
from undrift.errors import ConfigError, DataError

LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
PARTS = partition("dirichlet", LABELS, 8, 0, alpha=0.5)


@pytest.mark.parametrize("size", [1, 9, 10, 37, 100, 600])
def test_balanced_is_as_equal_as_can_be(size: int) -> None:
    chosen = server_indices("balanced", LABELS, PARTS, 0, size=size)
    assert len(set(chosen.tolist())) == size
    counts = np.bincount(LABELS[chosen], minlength=10)
    assert counts.max() - counts.min() <= (1 if size % 10 else 0)
    assert chosen.dtype == np.int64


def test_only_what_clients_hold_is_drawn() -> None:
    parts = [np.arange(0, 30), np.arange(200, 260)]
    pool = set(np.concatenate(parts).tolist())
    for source in ("balanced", "iid"):
        assert set(server_indices(source, LABELS, parts, 1, size=20).tolist()) <= pool


def test_iid_follows_the_classes_of_the_pool() -> None:
    labels = np.repeat([0, 1], [900, 100])
    counts = np.bincount(labels[server_indices("iid", labels, [np.arange(1000)], 0, size=500)])
    assert counts.sum() == 500
    assert abs(counts[1] - 50) < 25  # hypergeometric: 50, deviation 4.7


def test_contributors_give_the_same_number_each() -> None:
    chosen = server_indices("clients", LABELS, PARTS, 0, contributors=3, samples=12)
    given = [len(np.intersect1d(chosen, own)) for own in PARTS]
    assert sorted(n for n in given if n) == [12, 12, 12]
    large = [i for i, own in enumerate(PARTS) if len(own) >= 60]
    assert 0 < len(large) < len(PARTS)
    all_large = server_indices("clients", LABELS, PARTS, 0, contributors=len(large), samples=60)
    assert [i for i, own in enumerate(PARTS) if len(np.intersect1d(all_large, own))] == large


@pytest.mark.parametrize(
    ("source", "options"),
    [("balanced", {"size": 37}), ("iid", {"size": 37}), ("clients", {"contributors": 2, "samples": 9})],
)
def test_the_seed_decides(source: str, options: dict[str, Any]) -> None:
    a, b, c = (server_indices(source, LABELS, PARTS, s, **options) for s in (3, 3, 4))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    if source != "clients":  # the pool counts, not who holds which part of it
        assert np.array_equal(a, server_indices(source, LABELS, PARTS[::-1], 3, **options))


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("balanced", {}, r"server_data\.size is missing"),
        ("balanced", {"size": 0}, r"server_data\.size = 0"),
        ("iid", {"size": 601}, r"server_data\.size = 601: the clients have 600"),
        ("clients", {"samples": 3}, r"server_data\.contributors is missing"),
        ("clients", {"contributors": 3}, r"server_data\.samples is missing"),
        ("clients", {"contributors": 9, "samples": 1}, r"contributors = 9: only 8 clients"),
        ("clients", {"contributors": 1, "samples": 601}, r"only 0 clients have server_data\.samples = 601"),
        ("clients", {"contributors": 2, "samples": 5, "size": 11}, r"server_data\.size = 11"),
        ("somewhere", {"size": 3}, r"server_data\.source = 'somewhere'"),
    ],
)
def test_impossible_draws(source: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises((DataError, ConfigError), match=message):
        server_indices(source, LABELS, PARTS, 0, **options)


def test_balanced_needs_enough_of_each_class() -> None:
    labels = np.repeat([0, 5], [90, 10])
    with pytest.raises(DataError, match=r"server_data\.size = 40: needs 20 samples of class 5, there are 10"):
        server_indices("balanced", labels, [np.arange(100)], 0, size=40)
    with pytest.raises(ConfigError, match="seed = -1"):
        server_indices("balanced", labels, [np.arange(100)], -1, size=10)


def images() -> DataSet:
    x = torch.zeros(4, 3, 6, 5)
    y = torch.zeros(4, dtype=torch.int64)
    return DataSet("pictures", InMemory(x, y), InMemory(x, y), 4, None, (0.5, 0.25, 0.1), (0.2, 0.5, 1.0))


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_server_pixels_use_the_constants_of_the_data(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (7, 6, 5, 3), dtype=np.uint8)
    x, y = load_server_file(save(tmp_path / "s.npz", x=pixels, y=np.array([0, 1, 2, 3, 0, 1, 2], np.uint8)), images())
    want = (pixels / 255 - [0.5, 0.25, 0.1]) / [0.2, 0.5, 1.0]
    np.testing.assert_allclose(x.numpy(), want.transpose(0, 3, 1, 2), rtol=1e-5, atol=1e-6)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert y.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert y.dtype == torch.int64


def test_server_pixels_of_grey_images_match_the_loader(tmp_path: Path) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (9, 6, 5), dtype=np.uint8)
    y = np.arange(9) % 3
    data = load("npz", path=save(tmp_path / "d.npz", x_train=pixels, y_train=y, x_test=pixels, y_test=y))
    x, _ = load_server_file(save(tmp_path / "s.npz", x=pixels, y=y), data)
    assert torch.equal(x, data.x_train)


def test_server_floats_are_used_as_they_are(tmp_path: Path) -> None:
    values = np.random.default_rng(3).normal(size=(2, 3, 6, 5)).astype(np.float32)
    x, _ = load_server_file(save(tmp_path / "s.npz", x=values, y=np.array([0, 3])), images())
    assert np.array_equal(x.numpy(), values)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 6, 5, 3), np.uint8)}, "no array 'y'"),
        ({"x": np.zeros((2, 6, 5, 3), np.uint8), "y": np.array([0])}, "must be equal"),
        ({"x": np.zeros((2, 6, 5, 3), np.uint8), "y": np.array([0, 4])}, "label 4 is out of range 0 … 3"),
        ({"x": np.zeros((2, 6, 5), np.uint8), "y": np.array([0, 1])}, "1 channels, pictures has 3"),
        (
            {"x": np.zeros((2, 5, 6, 3), np.uint8), "y": np.array([0, 1])},
            r"shape \[3, 5, 6\], pictures has \[3, 6, 5\]",
        ),
        ({"x": np.zeros((2, 90)), "y": np.array([0, 1])}, r"shape \[90\]"),
        ({"x": np.full((2, 3, 6, 5), np.inf), "y": np.array([0, 1])}, "NaN or infinite"),
        ({"x": np.zeros((2, 6, 5, 3), np.int64), "y": np.array([0, 1])}, "int64 cannot be used"),
    ],
)
def test_server_files_that_do_not_fit(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        load_server_file(save(tmp_path / "s.npz", **arrays), images())
    assert "s.npz" in str(caught.value)


def test_pixels_for_data_that_were_not_pixels(tmp_path: Path) -> None:
    data = load("synthetic", samples=20, clients=2)
    with pytest.raises(DataError, match="use floats"):
        load_server_file(save(tmp_path / "s.npz", x=np.zeros((1, 6, 5), np.uint8), y=np.array([0])), data)


def test_pixels_count_from_0_to_255_whatever_the_data_came_from(tmp_path: Path) -> None:
    digits = load("digits")  # 17 grey levels
    assert digits.mean is not None
    assert digits.std is not None
    pixels = np.zeros((1, 8, 8), np.uint8)
    pixels[0, 2, 3] = 255
    x, _ = load_server_file(save(tmp_path / "s.npz", x=pixels, y=np.array([0])), digits)
    assert float(x[0, 0, 2, 3]) == pytest.approx((1 - digits.mean[0]) / digits.std[0])
    assert float(x[0, 0, 0, 0]) == pytest.approx(-digits.mean[0] / digits.std[0])
