"""Every format, written by hand in its smallest form, and every way in which it can be wrong."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from undrift.data import DataSet, data_root, load, rows
from undrift.errors import ConfigError, DataError

Array = NDArray[Any]

packed = partial(gzip.compress, mtime=0)


def idx(array: Array) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def write_idx(folder: Path, prefix: str, x: Array, y: Array) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(packed(idx(x)))
    (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(packed(idx(y)))


def write_mnist(root: Path, name: str = "mnist") -> tuple[Array, Array]:
    x = np.random.default_rng(0).integers(0, 256, (20, 4, 3), dtype=np.uint8)
    y = np.arange(20) % 10
    write_idx(root / name, "train", x, y)
    write_idx(root / name, "t10k", x[:5], y[:5])
    return x, y


def save_npz(path: Path, **changes: Any) -> Path:
    """A small valid file, with some arrays replaced (None: left out)."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        "x_train": rng.normal(size=(12, 5)).astype(np.float32),
        "y_train": np.arange(12) % 3,
        "x_test": rng.normal(size=(6, 5)).astype(np.float32),
        "y_test": np.arange(6) % 3,
    }
    arrays |= changes
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


def channels_last(x: torch.Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("name", "mean", "std"), [("mnist", 0.1307, 0.3081), ("fashion-mnist", 0.2860, 0.3530)])
def test_mnist_files_are_scaled_with_the_published_constants(
    tmp_path: Path, name: str, mean: float, std: float
) -> None:
    x, y = write_mnist(tmp_path, name)
    data = load(name, root=tmp_path)
    assert data.x_train.dtype == torch.float32
    assert data.y_train.dtype == torch.int64
    assert data.x_train.shape == (20, 1, 4, 3)
    np.testing.assert_allclose(data.x_train[:, 0].numpy(), (x / 255 - mean) / std, rtol=1e-5, atol=1e-6)
    assert data.y_train.tolist() == y.tolist()
    assert len(data.x_test) == len(data.y_test) == 5
    assert (data.classes, data.shape, data.mean, data.std) == (10, (1, 4, 3), (mean,), (std,))


def test_unpacked_idx_files_are_read_too(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    before = load("mnist", root=tmp_path)
    for path in (tmp_path / "mnist").glob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert torch.equal(load("mnist", root=tmp_path).x_train, before.x_train)


def test_emnist_is_turned_upright_and_measured(tmp_path: Path) -> None:
    upright = np.random.default_rng(1).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    y = np.array([0, 1, 2, 3, 4, 6])
    for part in ("train", "test"):
        write_idx(tmp_path / "emnist", f"emnist-mine-{part}", upright.transpose(0, 2, 1), y)
    data = load("emnist", root=tmp_path, split="mine")
    scaled = upright / 255
    np.testing.assert_allclose(
        data.x_train[:, 0].numpy(), (scaled - scaled.mean()) / scaled.std(), rtol=1e-4, atol=1e-5
    )
    assert data.classes == 7


def test_emnist_letters_start_at_one(tmp_path: Path) -> None:
    x = np.zeros((3, 28, 28), np.uint8)
    for part in ("train", "test"):
        write_idx(tmp_path / "emnist", f"emnist-letters-{part}", x, np.array([1, 26, 2]))
    data = load("emnist", root=tmp_path, split="letters")
    assert data.y_train.tolist() == [0, 25, 1]
    assert data.classes == 26


def test_emnist_split_that_is_not_there(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_idx(tmp_path / "emnist", f"emnist-mine-{part}", np.zeros((1, 28, 28)), np.zeros(1))
    with pytest.raises(DataError, match=r"data\.split = 'min': .*balanced, .*mine"):
        load("emnist", root=tmp_path, split="min")
    with pytest.raises(DataError, match=r"emnist-balanced-train-images-idx3-ubyte\.gz: no such file"):
        load("emnist", root=tmp_path)
    with pytest.raises(ConfigError, match=r"data\.split = '\.\./x'"):
        load("emnist", root=tmp_path, split="../x")


def test_cifar10_planes_become_channels(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    pixels = np.random.default_rng(2).integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
    y = np.arange(12, dtype=np.uint8) % 10
    records = np.concatenate([y[:, None], pixels.reshape(12, -1)], axis=1)
    for i in range(5):
        (folder / f"data_batch_{i + 1}.bin").write_bytes(records[2 * i : 2 * i + 2].tobytes())
    (folder / "test_batch.bin").write_bytes(records[10:].tobytes())
    data = load("cifar10", root=tmp_path)
    mean = np.array([0.4914, 0.4822, 0.4465])[:, None, None]
    std = np.array([0.2470, 0.2435, 0.2616])[:, None, None]
    np.testing.assert_allclose(data.x_train.numpy(), (pixels[:10] / 255 - mean) / std, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(data.x_test.numpy(), (pixels[10:] / 255 - mean) / std, rtol=1e-5, atol=1e-6)
    assert data.y_train.tolist() == y[:10].tolist()
    assert channels_last(data.x_train)


def test_cifar100_uses_the_fine_label(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    record = bytes([7, 99]) + bytes(3072)
    (folder / "train.bin").write_bytes(record * 2)
    (folder / "test.bin").write_bytes(bytes([0, 3]) + bytes(3072))
    data = load("cifar100", root=tmp_path)
    assert data.y_train.tolist() == [99, 99]
    assert data.y_test.tolist() == [3]
    assert data.classes == 100


def test_stl10_columns_come_first(tmp_path: Path) -> None:
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    image = np.zeros((3, 96, 96), np.uint8)  # channel, row, column
    image[1, 5, 70] = 255
    for part in ("train", "test"):
        (folder / f"{part}_X.bin").write_bytes(image.transpose(0, 2, 1).tobytes())
        (folder / f"{part}_y.bin").write_bytes(bytes([10]))
    data = load("stl10", root=tmp_path)
    assert np.argwhere(data.x_train.numpy() > 1).tolist() == [[0, 1, 5, 70]]
    assert data.y_train.tolist() == [9]


def test_digits_split_is_stratified_and_complete() -> None:
    data = load("digits")
    assert data.x_train.shape == (1442, 1, 8, 8)
    assert data.x_test.shape == (355, 1, 8, 8)
    total = torch.bincount(torch.cat([data.y_train, data.y_test]))
    assert torch.equal(torch.bincount(data.y_test), total // 5)
    assert abs(float(data.x_train.mean())) < 1e-5
    assert abs(float(data.x_train.std()) - 1) < 1e-3


def test_root_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "env")
    monkeypatch.setenv("UNDRIFT_DATA", str(tmp_path / "env"))
    assert len(load("mnist").y_train) == 20
    assert data_root(tmp_path) == tmp_path
    monkeypatch.delenv("UNDRIFT_DATA")
    assert data_root().name == "undrift"


@pytest.mark.parametrize("c", [1, 3])
def test_rows_keep_channels_last(c: int) -> None:
    x = torch.randn(20, 6, 5, c).permute(0, 3, 1, 2)
    idx = torch.tensor([3, 3, 19, 0])
    got = rows(x, idx)
    assert torch.equal(got, torch.stack([x[i] for i in idx.tolist()]))
    assert channels_last(got)
    vectors = torch.randn(20, 6)
    assert torch.equal(rows(vectors, idx), vectors[idx])


def test_classes_and_limit(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    few = load("mnist", root=tmp_path, classes=3)
    assert few.y_train.tolist() == [0, 1, 2, 0, 1, 2]
    assert few.y_test.tolist() == [0, 1, 2]
    assert few.classes == 3
    everything = load("mnist", root=tmp_path)
    a, b, longer, other = (load("mnist", root=tmp_path, limit=n, seed=s) for n, s in ((7, 0), (7, 0), (9, 0), (7, 1)))
    assert torch.equal(a.x_train, b.x_train)
    assert torch.equal(a.x_train, longer.x_train[:7])
    assert not torch.equal(a.x_train, other.x_train)
    matches = (everything.x_train[:, None] == a.x_train[None]).flatten(2).all(2)
    assert matches.sum(0).tolist() == [1] * 7  # seven different samples of the set
    assert matches.sum(1).max() == 1
    assert len(a.y_test) == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 11}, r"data\.classes = 11: mnist has 10 classes"),
        ({"classes": 0}, r"data\.classes = 0"),
        ({"limit": 21}, r"data\.limit = 21: mnist has 20"),
        ({"limit": 0}, r"data\.limit = 0"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_impossible_options(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    write_mnist(tmp_path)
    with pytest.raises((DataError, ConfigError), match=message):
        load("mnist", root=tmp_path, **options)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"data\.name = 'cifar-10' is unknown; did you mean 'cifar10'\?"):
        load("cifar-10")


def damage(root: Path, file: str, raw: bytes) -> None:
    (root / "mnist" / file).write_bytes(raw)


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
WHOLE = packed(idx(np.random.default_rng(3).integers(0, 256, (20, 4, 3))))


@pytest.mark.parametrize(
    ("file", "raw", "message"),
    [
        (IMAGES, WHOLE[:100], "damaged gzip"),
        (IMAGES, b"no gzip at all", "damaged gzip"),
        (IMAGES, WHOLE[:60] + b"\xff\xff\xff" + WHOLE[63:], "damaged gzip"),
        (IMAGES, packed(b"\0\0\x08\x03"), "bytes, but its header"),
        (IMAGES, packed(idx(np.zeros((20, 4, 3)))[:-1]), "255 bytes, but its header .* asks for 256"),
        (IMAGES, packed(b"<html>"), "not an idx file"),
        (IMAGES, packed(b""), "starts with nothing"),
        (IMAGES, packed(idx(np.zeros(20))), "1 axes, images have 3"),
        (LABELS, packed(idx(np.zeros((20, 4, 3)))), "3 axes, labels have 1"),
        (LABELS, packed(idx(np.zeros(19))), "19 labels for the 20 images"),
        (LABELS, packed(idx(np.full(20, 10))), "label 10 is out of range 0 … 9"),
    ],
)
def test_damaged_idx_files_are_named(tmp_path: Path, file: str, raw: bytes, message: str) -> None:
    write_mnist(tmp_path)
    damage(tmp_path, file, raw)
    with pytest.raises(DataError, match=message) as caught:
        load("mnist", root=tmp_path)
    text = str(caught.value)
    assert "\n" not in text
    assert "mnist" in text


def test_missing_file_says_how_to_get_it(tmp_path: Path) -> None:
    for name in ("mnist", "cifar10", "cifar100", "stl10", "emnist"):
        with pytest.raises(DataError, match=rf"no such file; `undrift data get {name}`"):
            load(name, root=tmp_path)


def test_folder_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-bin" / "data_batch_1.bin").mkdir(parents=True)
    with pytest.raises(DataError, match="not a file"):
        load("cifar10", root=tmp_path)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (bytes(3073), "3073 bytes, not a whole number of 3074-byte"),
        (b"", "0 bytes"),
        (bytes([0, 100]) + bytes(3072), "label 100"),
    ],
)
def test_wrong_cifar_files(tmp_path: Path, train: bytes, message: str) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "train.bin").write_bytes(train)
    (folder / "test.bin").write_bytes(bytes(3074))
    with pytest.raises(DataError, match=message):
        load("cifar100", root=tmp_path)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (bytes(27647), bytes([1]), "27647 bytes"),
        (bytes(27648), bytes([1, 2]), "2 labels for the 1 images"),
        (bytes(27648), bytes([0]), "label -1 is negative"),
        (bytes(27648), bytes([11]), "label 10 is out of range"),
    ],
)
def test_wrong_stl_files(tmp_path: Path, x: bytes, y: bytes, message: str) -> None:
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    for part in ("train", "test"):
        (folder / f"{part}_X.bin").write_bytes(x)
        (folder / f"{part}_y.bin").write_bytes(y)
    with pytest.raises(DataError, match=message):
        load("stl10", root=tmp_path)


def test_npz_vectors_are_used_as_they_are(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "mine.npz", client=np.array(list("bbbbbbaaaaaa")))
    data = load("npz", path=path)
    with np.load(path) as arrays:
        assert np.array_equal(data.x_train.numpy(), arrays["x_train"])
    assert data.client is not None
    assert data.client.tolist() == list("bbbbbbaaaaaa")
    assert (data.mean, data.std, data.classes) == (None, None, 3)
    small = load("npz", path=path, classes=2, limit=5, seed=3)
    assert small.client is not None
    for row, label, owner in zip(small.x_train, small.y_train, small.client, strict=True):
        at = int((data.x_train == row).all(1).nonzero()[0])
        assert data.client[at] == owner
        assert data.y_train[at] == label < 2


def test_npz_pixels_are_normalised_per_channel(tmp_path: Path) -> None:
    pixels = np.random.default_rng(4).integers(0, 256, (12, 4, 5, 3), dtype=np.uint8)
    pixels[..., 2] = 9  # a channel without any contrast
    data = load("npz", path=save_npz(tmp_path / "a.npz", x_train=pixels, x_test=pixels[:6]))
    scaled = pixels / 255
    std = scaled.std(axis=(0, 1, 2))
    std[2] = 1
    want = ((scaled - scaled.mean(axis=(0, 1, 2))) / std).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(data.x_train.numpy(), want, rtol=1e-4, atol=1e-5)
    assert channels_last(data.x_train)
    grey = load("npz", path=save_npz(tmp_path / "b.npz", x_train=pixels[..., 0], x_test=pixels[:6, ..., 0]))
    assert grey.shape == (1, 4, 5)


def test_npz_floating_images_keep_their_values(tmp_path: Path) -> None:
    x = np.random.default_rng(5).normal(size=(12, 3, 6, 5))
    data = load("npz", path=save_npz(tmp_path / "a.npz", x_train=x, x_test=x[:6]))
    assert np.array_equal(data.x_train.numpy(), x.astype(np.float32))
    assert channels_last(data.x_train)
    swapped = load("npz", path=save_npz(tmp_path / "b.npz", x_train=x.astype(">f4"), x_test=x[:6]))
    assert torch.equal(swapped.x_train, data.x_train)


NAN = np.zeros((12, 5))
NAN[3, 2] = np.nan


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "no array 'y_test'"),
        ({"y_train": np.arange(12) % 3 - 1}, "y_train: label -1 is negative"),
        ({"y_train": np.full(12, 10**9)}, "label 1000000000 is out of range"),
        ({"y_test": np.full(6, 3)}, "y_test: label 3 is out of range 0 … 2"),
        ({"y_train": np.arange(11) % 3}, "x_train has .*12.* y_train has .*11"),
        ({"x_train": np.zeros((0, 5)), "y_train": np.zeros(0, int)}, "no samples"),
        ({"x_test": np.zeros((0, 5)), "y_test": np.zeros(0, int)}, "y_test: no samples"),
        ({"x_train": NAN}, "x_train: 1 values are NaN or infinite"),
        ({"x_train": np.full((12, 5), 1e300)}, "60 values are NaN or infinite"),
        ({"x_train": np.zeros(12, np.int32)}, r"tokens\) must be \[n,t\]"),
        ({"y_train": np.full(12, np.inf)}, "y_train: NaN or infinite"),
        ({"y_train": np.array(list("abcabcabcabc")), "y_test": np.array(list("abcabd"))}, "class 'd' is not among"),
        ({"x_train": np.zeros((12, 5), complex)}, "complex128 cannot be used"),
        ({"x_train": np.zeros((12, 5), np.uint8)}, r"must be \[n,h,w\] or \[n,h,w,c\]"),
        ({"x_train": np.zeros((12, 1, 1, 1, 5))}, "floating inputs must be"),
        ({"x_train": np.zeros(12)}, "floating inputs must be"),
        ({"x_train": np.zeros((12, 8, 8, 3))}, r"looks like \[n,h,w,c\]"),
        ({"x_train": np.zeros((12, 4))}, "must be alike"),
        ({"x_train": np.zeros((12, 5, 5), np.uint8)}, "must be alike"),
        ({"client": np.zeros(5, int)}, "client has the shape"),
        ({"client": np.zeros(12)}, "client ids must be integers or strings"),
        ({"x_train": np.array([object()] * 12)}, "'x_train' is unreadable"),
    ],
)
def test_wrong_npz_files(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = save_npz(tmp_path / "mine.npz", **changes)
    with pytest.raises(DataError, match=message) as caught:
        load("npz", path=path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unreadable_npz_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.path is missing"):
        load("npz")
    with pytest.raises(DataError, match="no such file"):
        load("npz", path=tmp_path / "absent.npz")
    whole = save_npz(tmp_path / "whole.npz").read_bytes()
    cut = tmp_path / "cut.npz"
    for raw in (whole[: len(whole) // 2], b"hello", b""):
        cut.write_bytes(raw)
        with pytest.raises(DataError, match=r"cut\.npz: "):
            load("npz", path=cut)
    np.save(tmp_path / "single.npy", np.zeros(3))
    with pytest.raises(DataError, match="a single array"):
        load("npz", path=tmp_path / "single.npy")


def client_means(data: DataSet) -> Array:
    assert data.client is not None
    return np.stack([data.x_train.numpy()[data.client == k].mean(0) for k in np.unique(data.client)])


def test_synthetic_clients_differ_as_much_as_asked() -> None:
    options: dict[str, Any] = {"samples": 4000, "features": 6, "classes": 3, "clients": 8}
    same, different = (load("synthetic", heterogeneity=h, **options) for h in (0.0, 2.0))
    assert same.x_train.shape == (4000, 6)
    assert same.x_test.shape == (800, 6)
    assert same.classes == 3
    assert same.client is not None
    assert np.bincount(same.client).tolist() == [500] * 8
    # Means of 500 samples with deviation <= 1 scatter by about 1/sqrt(500) = .045; shifted ones by 2.
    assert client_means(same).std(0).max() < 0.15
    assert client_means(different).std(0).min() > 0.5

    # With h = 0 one linear model explains the labels of all: least squares on one client serves another.
    def transfer(data: DataSet) -> float:
        assert data.client is not None
        x = np.hstack([data.x_train.numpy(), np.ones((4000, 1))])
        y = data.y_train.numpy()
        fit = np.linalg.lstsq(x[data.client == 0], np.eye(3)[y[data.client == 0]], rcond=None)[0]
        others = data.client > 0
        return float(((x[others] @ fit).argmax(1) == y[others]).mean())

    assert transfer(same) > 0.8 > transfer(different)


def test_synthetic_depends_on_the_seed_alone() -> None:
    a, b, c = (load("synthetic", samples=50, clients=3, seed=s) for s in (0, 0, 1))
    assert torch.equal(a.x_train, b.x_train)
    assert torch.equal(a.y_test, b.y_test)
    assert not torch.equal(a.x_train, c.x_train)
    assert len(load("synthetic", samples=50, clients=3, limit=7).y_train) == 7


@pytest.mark.parametrize(
    "options",
    [
        {"samples": 0},
        {"features": 0},
        {"clients": 0},
        {"classes": 1},
        {"heterogeneity": -1.0},
        {"heterogeneity": float("nan")},
        {"samples": 2, "clients": 3},
    ],
)
def test_impossible_synthetic_data(options: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=rf"data\.{next(iter(options))} = "):
        load("synthetic", **options)
