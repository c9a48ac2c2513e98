"""Numbers over rounds: any number in the records, mean and deviation over seeds, against rounds, bytes or seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.report.runs import Group, RunRecord

Floats = NDArray[np.float64]
Value = Callable[[RunRecord], dict[int, float]]
"""A run's values by round."""
MEGABYTE = 1e6
NOT_DRAWN = ("round", "seconds", "bytes_down", "bytes_up", "clients_worst")
"""Numbers of a record that are axes, or no measure of anything."""
FIRST = ("test_", "train_", "validation_", "clients_")
"""What a reader looks for first, by the beginning of its name; the rest follows in the order of the records."""


def values(key: str) -> Value:
    """A number that stands in the records under ``key`` (dotted where it is nested)."""

    def value(run: RunRecord) -> dict[int, float]:
        found = ((record["round"], _at(record, key)) for record in run.records)
        return {round: float(number) for round, number in found if number is not None}

    return value


def _at(record: Mapping[str, Any], key: str) -> Any:
    if key in record or "." not in key:
        return record.get(key)
    inner = record.get(key.partition(".")[0])
    return inner.get(key.partition(".")[2]) if isinstance(inner, Mapping) else None


def numbers_in(runs: Iterable[RunRecord]) -> list[str]:
    """The keys of all numbers in the records, such as ``test_loss`` and ``drift.model``."""
    keys = dict.fromkeys(key for run in runs for record in _few(run.records) for key in _keys(record))
    first = [key for start in FIRST for key in keys if key.startswith(start)]
    return list(dict.fromkeys([*first, *keys]))


def _few(records: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
    """Enough of the records to know what is in them."""
    return [*records[:20], *records[20 :: max(1, len(records) // 50)]]


def _keys(record: Mapping[str, Any]) -> Iterator[str]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from (f"{key}.{inner}" for inner, number in value.items() if _number(number))
        elif _number(value) and key not in NOT_DRAWN:
            yield key


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def sent(run: RunRecord) -> dict[int, float]:
    """Megabytes sent up to each evaluated round; rounds that were not evaluated count like the next that was."""
    return _summed(run, lambda record: (record["bytes_down"] + record["bytes_up"]) / MEGABYTE)


def seconds(run: RunRecord) -> dict[int, float]:
    """Seconds of training up to each evaluated round."""
    if not run.rounds:
        return _summed(run, lambda record: record["seconds"])
    total, so_far = 0.0, {0: 0.0}
    for line in run.rounds:
        total += line["seconds"]
        so_far[line["round"]] = total
    return {record["round"]: so_far[record["round"]] for record in run.records if record["round"] in so_far}


def _summed(run: RunRecord, cost: Callable[[dict[str, Any]], float]) -> dict[int, float]:
    total, last, so_far = 0.0, 0, {}
    for record in run.records:
        total += (record["round"] - last) * cost(record)
        last = record["round"]
        so_far[last] = total
    return so_far


def spread(group: Group, value: Value) -> tuple[list[int], Floats, Floats]:
    """Rounds that all runs of a group have come to, with mean and standard deviation there."""
    each = [found for found in (value(run) for run in group.runs) if found]
    rounds = sorted(set.intersection(*(set(found) for found in each))) if each else []
    table = np.array([[found[r] for r in rounds] for found in each], dtype=float).reshape(len(each), len(rounds))
    deviation = table.std(axis=0, ddof=1) if len(each) > 1 else np.zeros(len(rounds))
    return rounds, table.mean(axis=0) if each else np.empty(0), deviation


def places(group: Group, rounds: Sequence[int], place: Value) -> Floats:
    """Where rounds lie on another axis: the mean over the group's runs."""
    each = [place(run) for run in group.runs if run.records]
    return np.array([np.mean([found[r] for found in each if r in found] or [np.nan]) for r in rounds])


def layer(name: str) -> Value:
    """Drift diversity of one layer."""

    def value(run: RunRecord) -> dict[int, float]:
        found = {r["round"]: r["drift"]["layers"].get(name) for r in run.records if "drift" in r}
        return {round: float(number) for round, number in found.items() if number is not None}

    return value


def layers_of(group: Group) -> list[str]:
    """The layers whose drift a group's runs measured, from input to output."""
    measured = (list(r["drift"]["layers"]) for run in group.runs for r in run.records if "drift" in r)
    return next(measured, [])


def plain_name(key: str) -> str:
    """A number's key in words."""
    words = {"cka": "CKA", "mae": "MAE", "rmse": "RMSE", "f1": "F1", "p10": "10 % quantile", "p90": "90 % quantile"}
    return " ".join(words.get(word, word) for word in key.replace(".", "_").split("_"))
