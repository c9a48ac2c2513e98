"""A classification task whose clients differ as much as one is told to.

In the spirit of synthetic(alpha, beta) (Li et al., Federated Optimization in Heterogeneous
Networks, 2020), with one knob h. Client k has the model W_k = W + h*dW_k, b_k = b + h*db_k and the
feature mean v_k, all entries of W, b, dW_k, db_k standard normal, v_k = h * normal:

    x = v_k + z,  z_j ~ N(0, j^-1.2),   y = argmax softmax(x W_k + b_k)

With h = 0 all clients share one model and one feature distribution.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from undrift.core.machine import memory_bytes
from undrift.core.streams import stream
from undrift.data.dataset import DataSet
from undrift.data.samples import InMemory
from undrift.errors import DataError


def synthetic(*, samples: int, features: int, classes: int, heterogeneity: float, clients: int, seed: int) -> DataSet:
    """Draw `samples` training rows and a fifth as many test rows, spread evenly over the clients."""
    for key, value in (("samples", samples), ("features", features), ("clients", clients)):
        if value < 1:
            raise DataError(f"data.{key} = {value}: must be at least 1")
    if classes < 2:
        raise DataError(f"data.classes = {classes}: synthetic data need at least 2")
    if not (np.isfinite(heterogeneity) and heterogeneity >= 0):
        raise DataError(f"data.heterogeneity = {heterogeneity}: must be a number from 0 on")
    if samples < clients:
        raise DataError(f"data.samples = {samples}: fewer than data.clients = {clients}")
    if max(2 * samples, classes, clients) * features * 8 > memory_bytes() // 2:
        raise DataError(f"data.samples = {samples}: with {features} features more than half of this machine's memory")
    rng = stream(seed, "synthetic")
    W, b = rng.standard_normal((features, classes)), rng.standard_normal(classes)
    x = np.empty((samples + max(samples // 5, 1), features))
    y = np.empty(len(x), np.int64)
    owner = np.concatenate([np.arange(m) * clients // m for m in (samples, len(x) - samples)])
    sigma = np.arange(1, features + 1) ** -0.6
    by_owner = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner, minlength=clients))
    for own in np.split(by_owner, ends[:-1]):
        W_k = W + heterogeneity * rng.standard_normal(W.shape)
        b_k = b + heterogeneity * rng.standard_normal(classes)
        v_k = heterogeneity * rng.standard_normal(features)
        x[own] = v_k + sigma * rng.standard_normal((len(own), features))
        y[own] = np.argmax(x[own] @ W_k + b_k, axis=1)
    ids: NDArray[Any] = owner[:samples]
    inputs, labels = torch.from_numpy(x).to(torch.float32), torch.from_numpy(y)
    train, test = (InMemory(inputs[part], labels[part]) for part in (slice(samples), slice(samples, None)))
    return DataSet("synthetic", train, test, classes, ids)
