"""How alike clients' features are after their local steps: linear CKA, minibatch by minibatch.

For features ``X`` (samples x width) and the kernel ``K = X X^T``, ``CKA(K, L) = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L))``:
1 for features that agree up to rotation and scale. HSIC is estimated without bias as the mean over minibatches of
``<K~, L~> / (m(m-3))``, where ``K~`` is the U-centred kernel

    ``K~_ij = K_ij - (sum_l K_il + sum_k K_kj)/(m-2) + sum_kl K_kl / ((m-1)(m-2))``,  ``K~_ii = 0``  (diagonal of K set to 0)

so one client leaves just ``samples * m`` numbers for each layer, however wide its features are.
Kornblith et al., Similarity of Neural Network Representations Revisited, 2019; Nguyen, Raghu, Kornblith, Do Wide
and Deep Networks Learn the Same Things?, 2021 (minibatches); Song et al., Feature Selection via Dependence
Maximization, 2012, and Székely, Rizzo, 2014 (unbiased, U-centring).
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from undrift.core.nested import call, length
from undrift.core.streams import stream
from undrift.data.samples import InMemory
from undrift.errors import ConfigError
from undrift.measure.base import Periodic
from undrift.rounds.progress import Record

if TYPE_CHECKING:
    from undrift.data.samples import Samples
    from undrift.rounds.messages import Outcome
    from undrift.rounds.server_step import Server
    from undrift.rounds.worker import Worker

BATCH = 64


def centred_kernel(features: Tensor) -> Tensor:
    """The U-centred linear kernel of one minibatch of features (at least 4 samples)."""
    x = features.reshape(len(features), -1).double()
    m = len(x)
    kernel = (x - x.mean(0)) @ (x - x.mean(0)).T
    kernel.fill_diagonal_(0)
    sums = kernel.sum(1)
    kernel -= (sums[:, None] + sums[None, :]) / (m - 2)
    kernel += sums.sum() / ((m - 1) * (m - 2))
    return kernel.fill_diagonal_(0)


def cka(first: Sequence[Tensor], second: Sequence[Tensor]) -> float | None:
    """CKA of two models' features on the same minibatches; None where features are constant."""
    a, b = (_stacked([centred_kernel(features) for features in side]) for side in (first, second))
    return _similarity(a, b)


def _stacked(kernels: Sequence[Tensor]) -> Tensor:
    """Kernels as one vector whose inner products are sums of unbiased HSIC estimates."""
    return torch.cat([k.flatten() / (len(k) * (len(k) - 3)) ** 0.5 for k in kernels])


def _similarity(a: Tensor, b: Tensor) -> float | None:
    norms = float(a.norm() * b.norm())
    return float(a.dot(b)) / norms if norms > 0 else None


@dataclass
class Cka(Periodic):
    """Mean and least CKA over all pairs of the cohort's models ``y_i = x + delta_i``, on test samples."""

    layers: Sequence[str] | None = None
    """Names of layers; None: every layer with parameters."""
    samples: int = 256
    _names: tuple[str, ...] = field(default=(), init=False, repr=False)
    _data: Samples | None = field(default=None, init=False, repr=False)
    _kernels: dict[str, list[Tensor]] = field(default_factory=dict, init=False, repr=False)

    def begin(self, worker: Worker) -> None:
        """Choose layers and test samples."""
        super().begin(worker)
        if worker.work.personal:
            raise ConfigError("measure.cka: clients' own layers stay with them, so their features are not seen here")
        data = self.test_data("cka")
        known = [layer.name for layer in worker.model.layout.layers]
        self._names = tuple(known if self.layers is None else self.layers)
        for name in self._names:
            if name not in known:
                raise ConfigError(f"measure.cka: no layer {name!r}; the model has {', '.join(known)}")
        order = stream(worker.work.plan.seed, "measure").permutation(len(data))[: self.samples]
        if len(order) < 4:
            raise ConfigError("measure.cka: at least 4 test samples are needed")
        self._data = InMemory(*data.take(order))

    def see(self, outcome: Outcome, weight: float, x: Tensor) -> None:
        """Keep the kernels of a client's features."""
        with self.loaded(x + outcome.delta, outcome.buffers):
            found = self._features()
        for name, kernels in found.items():
            self._kernels.setdefault(name, []).append(_stacked(kernels))

    def tell(self, round: int, server: Server) -> Record:
        """``{"cka": {layer: {"mean": …, "min": …}}}``; nothing in round 0 or with one client."""
        kernels, self._kernels = self._kernels, {}
        return {"cka": {name: _pairs(each) for name, each in kernels.items()}} if kernels else {}

    def _features(self) -> dict[str, list[Tensor]]:
        assert self._data is not None
        kernels: dict[str, list[Tensor]] = {name: [] for name in self._names}
        with torch.inference_mode(), _hooks(self.worker.model.module, self._names) as caught:
            for start in range(0, len(self._data) - 3, BATCH):
                inputs, _ = self._data.take(np.arange(start, min(start + BATCH, len(self._data))))
                if length(inputs) > 3:
                    call(self.worker.model.module, self.worker.place.moved((inputs, ()))[0])
                    for name in self._names:
                        kernels[name].append(centred_kernel(caught[name]).cpu())
        return kernels


def _pairs(kernels: list[Tensor]) -> Record:
    values = [_similarity(a, b) for number, a in enumerate(kernels) for b in kernels[:number]]
    known = [value for value in values if value is not None]
    return {"mean": sum(known) / len(known) if known else None, "min": min(known, default=None)}


@contextmanager
def _hooks(module: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    caught: dict[str, Tensor] = {}

    def catch(name: str) -> Any:
        def hook(_: nn.Module, __: Any, out: Tensor) -> None:
            caught[name] = out

        return hook

    handles = [module.get_submodule(name).register_forward_hook(catch(name)) for name in names]
    try:
        yield caught
    finally:
        for handle in handles:
            handle.remove()
