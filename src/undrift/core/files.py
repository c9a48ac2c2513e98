"""Files that are either as they were or complete: written beside their place, then moved into it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace ``path`` by ``content`` in one step; an interruption leaves the old file untouched."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    data = content.encode() if isinstance(content, str) else content
    with open(beside, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


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


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON-lines file; a last line cut short by an interruption is left out."""
    if not path.exists():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return records
