"""Data that a function of one's own gives: ``data.name = "package.module:function"``.

The function returns ``(train, test)``, or a dictionary with ``train`` (and ``client``, an id for each row) or
``clients`` (one data set for each), and, where there are any, ``test``, ``server``, ``classes``, ``collate``, ``lazy``.
Each data set may have any form that ``simulate`` takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from undrift.core.plugins import called
from undrift.core.words import nearest
from undrift.data.dataset import DataSet
from undrift.data.own import pooled, samples_of
from undrift.data.samples import Samples, labels_of
from undrift.errors import DataError

KEYS = ("train", "client", "clients", "test", "server", "classes", "collate", "lazy")


def data_by_name(name: str, arguments: dict[str, Any]) -> DataSet:
    """The data set that the function of this name gives."""
    given = called(name, "data.name", arguments)
    if isinstance(given, tuple) and len(given) == 2:
        given = {"train": given[0], "test": given[1]}
    if not isinstance(given, Mapping) or ("train" in given) == ("clients" in given):
        raise DataError(f"{name}: (train, test), or a dictionary with 'train' or 'clients', is needed")
    for key in given:
        if key not in KEYS:
            raise DataError(f"{name}: unknown key {key!r}; {nearest(str(key), KEYS)}")
    collate, lazy = given.get("collate"), given.get("lazy")
    train, client = _training(name, given)
    test, server = (
        None if given.get(key) is None else samples_of(given[key], f"{name}: {key}", collate, lazy)
        for key in ("test", "server")
    )
    return DataSet(name, train, test, given.get("classes") or _classes(train), client, None, None, server)


def _training(name: str, given: Mapping[str, Any]) -> tuple[Samples, NDArray[Any] | None]:
    collate, lazy = given.get("collate"), given.get("lazy")
    if "clients" in given:
        each: list[Samples] = [
            samples_of(data, f"{name}: client {number}", collate, lazy) for number, data in enumerate(given["clients"])
        ]
        if not each:
            raise DataError(f"{name}: no clients")
        return pooled(each, collate), np.repeat(np.arange(len(each)), [len(one) for one in each])
    train = samples_of(given["train"], f"{name}: train", collate, lazy)
    client = None if given.get("client") is None else np.asarray(given["client"])
    if client is not None and client.shape != (len(train),):
        raise DataError(f"{name}: client has the shape {list(client.shape)}, there are {len(train)} training samples")
    return train, client


def _classes(train: Samples) -> int:
    labels = labels_of(train)
    return 1 if labels is None or not len(labels) else int(labels.max()) + 1
