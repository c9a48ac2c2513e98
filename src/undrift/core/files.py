"""Files that are either as they were or complete, and one way to read them: whole, or an error that says what is wrong.

Files are written beside their place, made durable, then moved into it. Whatever a file of ours holds when it is read
(rubbish, half of itself, a device that never ends), the answer is its content or one :class:`UnreadableError`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError

from undrift.errors import UnreadableError

T = TypeVar("T")
LARGEST = 1 << 40
"""Bytes: no file of ours is larger."""
LARGEST_SETTINGS = 16 << 20
"""Bytes: no file that a person wrote is larger."""


def write_atomic(path: Path, content: bytes | str, *, named: bool = True) -> None:
    """Replace ``path`` by ``content`` in one step; an interruption leaves the old file untouched.

    Not ``named``: who writes many files makes their folder durable once, afterwards.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    data = content.encode() if isinstance(content, str) else content
    try:
        with open(beside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    if named:
        make_durable(path.parent)


def make_durable(path: Path) -> None:
    """Wait until what was written to a file, or the names in a folder, would survive the machine's end."""
    place = os.open(path, os.O_RDONLY)
    try:
        os.fsync(place)
    except OSError:
        if not path.is_dir():  # some file systems know no such thing for folders
            raise
    finally:
        os.close(place)


def unfinished(path: Path) -> bool:
    """Whether this is what a killed process left of a file that :func:`write_atomic` was writing."""
    return path.name.startswith(".") and path.name.endswith(".part")


def write_json(path: Path, content: Any) -> None:
    """Write ``content`` as indented JSON, atomically."""
    write_atomic(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """The same for JSON, which has no NaN and no infinity: such a number is null."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def digest(content: bytes) -> str:
    """A checksum: another text if a bit of the content is another."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def digest_of_json(content: Any) -> str:
    """A checksum of what stands in a JSON file, however it is laid out."""
    return digest(json.dumps(content, sort_keys=True, allow_nan=False).encode())


def read_with(path: Path, parse: Callable[[bytes], T], most: int = LARGEST) -> T:
    """What ``parse`` makes of a regular file; every way in which that can fail is one error that names the file."""
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableError(f"{path}: {'a folder' if stat.S_ISDIR(found.st_mode) else 'not a regular file'}")
        if found.st_size > most:
            raise UnreadableError(f"{path}: {found.st_size} bytes, at most {most} are read")
        with open(path, "rb") as file:
            return parse(file.read(found.st_size))
    except FileNotFoundError:
        raise UnreadableError(f"{path}: no such file") from None
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read ({error.strerror or error})") from None
    except RecursionError:
        raise UnreadableError(f"{path}: nested too deeply") from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, SafetensorError) as error:
        raise UnreadableError(f"{path}: damaged ({first_line(error)})") from None


def read_content(path: Path, most: int = LARGEST) -> bytes:
    """A file's bytes."""
    return read_with(path, bytes, most)


def read_json(path: Path, most: int = LARGEST) -> Any:
    """What a JSON file holds."""
    return read_with(path, json.loads, most)


def read_object(path: Path, most: int = LARGEST) -> dict[str, Any]:
    """The dictionary that a JSON file holds."""
    return read_with(path, lambda raw: _object(json.loads(raw)), most)


def read_toml(path: Path, most: int = LARGEST_SETTINGS) -> dict[str, Any]:
    """What a TOML file holds."""
    return read_with(path, lambda raw: tomllib.loads(raw.decode()), most)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file, each with a later round than the one before.

    A last line cut short by an interruption is left out; anything else that is not as it was written is an error.
    """
    return read_with(path, records_of) if path.exists() else []


def records_of(content: bytes) -> list[dict[str, Any]]:
    """The records in the bytes of a JSON-lines file; ValueError where they are not whole or not in order."""
    whole, _, _ = content.rpartition(b"\n")
    records: list[dict[str, Any]] = []
    for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
        try:
            record = _object(json.loads(line))
        except (ValueError, RecursionError):
            raise ValueError(f"line {number} is no record") from None
        if not _follows(record.get("round"), records):
            raise ValueError(f"line {number}: round {str(record.get('round'))[:20]} is out of place")
        records.append(record)
    return records


def _follows(round: Any, records: list[dict[str, Any]]) -> bool:
    return isinstance(round, int) and round > (records[-1]["round"] if records else -1)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{type(value).__name__} instead of an object")
    return value


def first_line(error: BaseException) -> str:
    """An error in one short line."""
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else type(error).__name__
