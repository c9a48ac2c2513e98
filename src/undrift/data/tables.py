"""A table in a CSV file: one row for each sample, a header line, one column for the target.

Columns of numbers become inputs as they are, or standardised; columns of words become one input for each word
(1 where it stands, else 0), in alphabetical order. Mean, deviation and words are those of the training rows.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from undrift.core.streams import stream
from undrift.core.words import nearest
from undrift.data.dataset import DataSet
from undrift.data.samples import InMemory
from undrift.errors import ConfigError, DataError

Columns = dict[str, NDArray[Any]]
LONGEST = 1000
"""Letters of a value: all values of a table take as much room as the longest."""
MOST_WORDS = 1000
"""A column with more different words than this is no category."""


def read_csv(
    path: Path,
    *,
    label: str | None,
    client: str | None = None,
    test_path: Path | None = None,
    test_share: float = 0.2,
    numbers: bool = False,
    standardise: bool = True,
    seed: int = 0,
) -> DataSet:
    """The data set in a CSV file; test rows come from another file, or are drawn (``test_share`` of all rows).

    ``numbers``: targets are numbers (regression); else words and whole numbers are classes.
    """
    columns = _columns(path)
    for key, name in (("data.label", label), ("data.client", client)):
        if name is not None and name not in columns:
            raise ConfigError(f"{key} = {name!r}: {path} has no such column; {nearest(name, columns)}")
    if label is None:
        raise ConfigError(f"data.label is missing: which column of {path} is the target? ({', '.join(columns)})")
    if test_path is None:
        train, test = _drawn(columns, test_share, seed)
    else:
        train, test = columns, _columns(test_path)
        if missing := [name for name in columns if name not in test and name != client]:
            raise DataError(f"{test_path}: no column {missing[0]!r}, which {path} has")
    names = [name for name in columns if name not in (label, client)]
    if not names:
        raise DataError(f"{path}: no column is left for inputs")
    inputs = [_Input.of(name, train[name], standardise, path) for name in names]
    x_train, x_test = (np.concatenate([one.values(part[one.name]) for one in inputs], 1) for part in (train, test))
    y_train, y_test, classes = _targets(train[label], test[label], numbers, f"{path}, column {label!r}")
    return DataSet(
        "csv",
        InMemory(torch.from_numpy(x_train).float(), torch.from_numpy(y_train)),
        InMemory(torch.from_numpy(x_test).float(), torch.from_numpy(y_test)),
        classes,
        None if client is None else train[client],
    )


def _columns(path: Path) -> Columns:
    """All columns of a file, as text."""
    try:
        text = read_with(path, lambda raw: raw.decode("utf-8-sig"), memory_bytes() // 16)
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except (UnreadableError, csv.Error) as error:
        raise DataError(f"{path}: not a readable CSV file ({str(error).removeprefix(f'{path}: ')})") from None
    header, rows = (rows[0], [row for row in rows[1:] if row]) if rows else ([], [])
    if not header or not rows:
        raise DataError(f"{path}: a header line and at least one row are needed")
    if len(set(header)) < len(header) or "" in header:
        raise DataError(f"{path}: every column needs a name of its own, not {header}")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: {len(row)} values, the header names {len(header)} columns")
        if "" in row:
            raise DataError(f"{path}, line {number}: no value in column {header[row.index('')]!r}")
        if max(map(len, row)) > LONGEST:
            raise DataError(f"{path}, line {number}: a value of more than {LONGEST} letters")
    table = np.array(rows)
    return {name: table[:, place] for place, name in enumerate(header)}


def _drawn(columns: Columns, share: float, seed: int) -> tuple[Columns, Columns]:
    count = len(next(iter(columns.values())))
    held = max(1, round(share * count))
    if held >= count:
        raise DataError(f"data.test_share = {share}: of {count} rows none would be left for training")
    order = stream(seed, "test-rows").permutation(count)
    parts = np.sort(order[held:]), np.sort(order[:held])
    train, test = ({name: values[part] for name, values in columns.items()} for part in parts)
    return train, test


@dataclass(frozen=True)
class _Input:
    """How a column becomes inputs."""

    name: str
    words: tuple[str, ...] = ()
    mean: float = 0.0
    deviation: float = 1.0

    @staticmethod
    def of(name: str, text: NDArray[Any], standardise: bool, path: Path) -> _Input:
        values = _floats(text)
        if values is None:
            words = tuple(np.unique(text).tolist())
            if len(words) > MOST_WORDS:
                raise DataError(f"{path}, column {name!r}: {len(words)} different words; numbers or categories needed")
            return _Input(name, words)
        if not np.isfinite(values).all():
            raise DataError(f"{path}, column {name!r}: NaN or an infinity")
        return _Input(name, (), float(values.mean()), float(values.std()) or 1.0) if standardise else _Input(name)

    def values(self, text: NDArray[Any]) -> NDArray[np.float64]:
        """The column's inputs [rows, inputs]."""
        if self.words:
            return np.asarray(text[:, None] == np.array(self.words)[None], dtype=np.float64)
        found = _floats(text)
        if found is None:
            raise DataError(f"column {self.name!r}: numbers in the training rows, other text in the test rows")
        return (found[:, None] - self.mean) / self.deviation


def _floats(text: NDArray[Any]) -> NDArray[np.float64] | None:
    try:
        return text.astype(np.float64)
    except ValueError:
        return None


def _targets(train: NDArray[Any], test: NDArray[Any], numbers: bool, where: str) -> tuple[Any, Any, int]:
    """Targets and how many outputs they need."""
    values, tested = _floats(train), _floats(test)
    whole = values is not None and bool((values == np.round(values)).all())
    if numbers or (values is not None and not whole):
        if values is None or tested is None:
            raise DataError(f"{where}: targets must be numbers")
        return values.astype(np.float32), tested.astype(np.float32), 1
    names = np.unique(train) if values is None else np.unique(values)
    found, other = (train, test) if values is None or tested is None else (values, tested)
    if unseen := sorted(set(np.unique(other).tolist()) - set(names.tolist())):
        raise DataError(f"{where}: class {unseen[0]!r} is only among the test rows")
    return np.searchsorted(names, found), np.searchsorted(names, other), len(names)
