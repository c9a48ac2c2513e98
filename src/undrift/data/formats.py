"""Readers of the published file formats; each returns uint8 pixels [n, h, w, c] and integer labels."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.core.machine import memory_bytes
from undrift.core.text import printable
from undrift.errors import DataError

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
LARGEST = 1 << 30
"""Bytes of the largest published file, unpacked, and some more."""


def read_bytes(path: Path, get: str) -> bytes:
    """Read a file (unpacking *.gz); a missing one names the data set `get` that would bring it."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: not a file")
    try:
        if not path.exists() and plain.is_file():
            path = plain
        if path.suffix == ".gz":
            with gzip.open(path) as stream:
                return _bounded(stream.read(LARGEST + 1), path)
        with path.open("rb") as stream:
            return _bounded(stream.read(LARGEST + 1), path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; `undrift data get {get}` fetches it") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: damaged gzip file ({error}); delete it and run `undrift data get {get}`") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None


def _bounded(content: bytes, path: Path) -> bytes:
    if len(content) > LARGEST:
        raise DataError(f"{path}: more than {LARGEST >> 20} MB; no published file is that large")
    return content


def parse_idx(raw: bytes, path: Path) -> NDArray[np.uint8]:
    """Decode an idx file: two zero bytes, the type (8: bytes), the number of axes, their lengths."""
    if len(raw) < 4 or raw[:3] != b"\0\0\x08" or not 1 <= raw[3] <= 3:
        raise DataError(f"{path}: not an idx file of bytes (starts with {raw[:4].hex() or 'nothing'})")
    start = 4 + 4 * raw[3]
    shape = tuple(int.from_bytes(raw[i : i + 4], "big") for i in range(4, start, 4))
    want = start + int(np.prod(shape, dtype=object))
    if len(raw) != want:
        raise DataError(f"{path}: {len(raw)} bytes, but its header {shape} asks for {want}")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_idx(images: Path, labels: Path, get: str) -> tuple[Pixels, Labels]:
    """Read a pair of idx files (MNIST and its relatives)."""
    x, y = parse_idx(read_bytes(images, get), images), parse_idx(read_bytes(labels, get), labels)
    if x.ndim != 3:
        raise DataError(f"{images}: {x.ndim} axes, images have 3")
    if y.ndim != 1:
        raise DataError(f"{labels}: {y.ndim} axes, labels have 1")
    if len(x) != len(y):
        raise DataError(f"{labels}: {len(y)} labels for the {len(x)} images of {images.name}")
    return x[..., None], y.astype(np.int64)


def read_cifar(paths: list[Path], label_bytes: int, get: str) -> tuple[Pixels, Labels]:
    """Read CIFAR's binary version: label bytes (the last one counts), then 3 x 32 x 32 pixels."""
    record = label_bytes + 3072
    parts = []
    for path in paths:
        raw = read_bytes(path, get)
        if not raw or len(raw) % record:
            raise DataError(f"{path}: {len(raw)} bytes, not a whole number of {record}-byte records")
        parts.append(np.frombuffer(raw, np.uint8).reshape(-1, record))
    pixels = np.concatenate([p[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) for p in parts])
    return pixels, np.concatenate([p[:, label_bytes - 1] for p in parts]).astype(np.int64)


def read_stl(images: Path, labels: Path, get: str) -> tuple[Pixels, Labels]:
    """Read STL-10's binary files: 3 x 96 x 96 pixels column after column, labels 1 … 10."""
    raw, y = read_bytes(images, get), np.frombuffer(read_bytes(labels, get), np.uint8)
    if not raw or len(raw) % 27648:
        raise DataError(f"{images}: {len(raw)} bytes, not a whole number of 27648-byte images")
    x = np.frombuffer(raw, np.uint8).reshape(-1, 3, 96, 96)  # image, channel, column, row
    if len(x) != len(y):
        raise DataError(f"{labels}: {len(y)} labels for the {len(x)} images of {images.name}")
    return x.transpose(0, 3, 2, 1), y.astype(np.int64) - 1


def read_npz(path: Path, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, NDArray[Any]]:
    """Read arrays of an npz file; pickled objects are never loaded."""
    arrays = {}
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: not a file")
    try:
        with path.open("rb") as stream:  # np.load leaves a file that it cannot read open
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise DataError(f"{path}: a single array, not an npz file")
            for name in needed:
                if name not in archive.files:
                    found = printable(", ".join(archive.files), 500) or "nothing"
                    raise DataError(f"{path}: no array {name!r} (needed: {', '.join(needed)}; found: {found})")
            for name in (*needed, *(o for o in optional if o in archive.files)):
                arrays[name] = _member(archive, name, path)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None
    except DataError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy each have their own for a damaged file
        raise DataError(f"{path}: not a readable npz file ({_one_line(error)})") from None
    return arrays


def _member(archive: Any, name: str, path: Path) -> NDArray[Any]:
    size = sum(item.file_size for item in archive.zip.infolist() if item.filename.removesuffix(".npy") == name)
    if size > memory_bytes() // 2:
        raise DataError(
            f"{path}: array {name!r} takes {size >> 30} GB unpacked; at most half of this machine's memory is used"
        )
    try:
        array = archive[name]
    except Exception as error:
        raise DataError(f"{path}: array {name!r} is unreadable ({_one_line(error)})") from None
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: array {name!r} is unreadable (its beginning is not that of an array)")
    return array


def _one_line(error: Exception) -> str:
    return printable(str(error).splitlines()[0]) if str(error) else type(error).__name__
