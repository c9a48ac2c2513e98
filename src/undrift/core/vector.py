"""A model as one flat vector with a named layout: the only place that touches parameter memory.

Parameters are views into ``FlatModel.weights``, their gradients into ``FlatModel.grad``, floating buffers
(batch norm's running statistics) into ``FlatModel.buffers``. Four-dimensional weights lie in channels-last
order, which convolutions on a CPU prefer.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.autograd import Variable

from undrift.core.files import write_atomic
from undrift.errors import ConfigError

_NORMS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.GroupNorm,
    nn.LayerNorm,
)


@dataclass(frozen=True)
class Entry:
    """One named tensor inside a flat vector."""

    name: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int
    size: int

    @property
    def slice(self) -> slice:
        """The part of the vector that this tensor fills."""
        return slice(self.start, self.start + self.size)

    def of(self, vector: Tensor) -> Tensor:
        """The tensor, as a view into ``vector``."""
        return vector.as_strided(self.shape, self.stride, vector.storage_offset() + self.start)


@dataclass(frozen=True)
class Layer:
    """A layer with parameters: weight and bias are one layer, a norm layer belongs to the layer before it."""

    name: str
    slices: tuple[slice, ...]


@dataclass(frozen=True)
class Layout:
    """Where every tensor and every layer of a model lies in its flat vector."""

    entries: tuple[Entry, ...]
    layers: tuple[Layer, ...] = ()
    norms: frozenset[str] = frozenset()
    """Names of the norm layers' tensors."""
    personal: tuple[int, int] = (0, 0)
    """How many numbers of weights and of buffers lie behind this layout, in layers that never leave a client."""

    @property
    def size(self) -> int:
        """Length of the vector."""
        return sum(entry.size for entry in self.entries)

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Every named tensor as a view into ``vector``."""
        return {entry.name: entry.of(vector) for entry in self.entries}

    def slices_of(self, layers: int | Sequence[str]) -> tuple[slice, ...]:
        """The slices of the last ``layers`` layers, or of the layers with these names."""
        if isinstance(layers, int):
            if not 0 <= layers <= len(self.layers):
                raise ConfigError(
                    f"layers = {layers}: the model has {len(self.layers)} layers with parameters "
                    f"(0 to {len(self.layers)} are allowed)"
                )
            chosen = self.layers[len(self.layers) - layers :]
        else:
            known = {layer.name: layer for layer in self.layers}
            for name in layers:
                if name not in known:
                    raise ConfigError(f"layers: no layer {name!r}; the model has {', '.join(known)}")
            chosen = tuple(layer for layer in self.layers if layer.name in set(layers))
        return merge(piece for layer in chosen for piece in layer.slices)


def merge(slices: Iterator[slice]) -> tuple[slice, ...]:
    """The same positions in as few slices as possible, in ascending order."""
    merged: list[slice] = []
    for piece in sorted(slices, key=lambda s: int(s.start)):
        if merged and merged[-1].stop == piece.start:
            merged[-1] = slice(merged[-1].start, piece.stop)
        else:
            merged.append(piece)
    return tuple(merged)


def _entries(named: list[tuple[str, Tensor]]) -> tuple[Entry, ...]:
    entries, start = [], 0
    for name, tensor in named:
        shape = tuple(tensor.shape)
        meta = torch.empty(shape, device="meta")
        if len(shape) == 4:
            meta = meta.contiguous(memory_format=torch.channels_last)
        entries.append(Entry(name, shape, tuple(meta.stride()), start, tensor.numel()))
        start += tensor.numel()
    return tuple(entries)


def _layers(module: nn.Module, entries: tuple[Entry, ...]) -> tuple[Layer, ...]:
    found: list[tuple[str, list[slice]]] = []
    by_owner: dict[str, list[Entry]] = {}
    for entry in entries:
        by_owner.setdefault(entry.name.rpartition(".")[0], []).append(entry)
    for owner, own in by_owner.items():
        slices = [entry.slice for entry in own]
        if found and isinstance(module.get_submodule(owner), _NORMS):
            found[-1][1].extend(slices)
        else:
            found.append((owner or own[0].name, slices))
    return tuple(Layer(name, merge(iter(slices))) for name, slices in found)


def _norms(module: nn.Module, entries: tuple[Entry, ...]) -> frozenset[str]:
    return frozenset(
        entry.name for entry in entries if isinstance(module.get_submodule(entry.name.rpartition(".")[0]), _NORMS)
    )


class FlatModel:
    """A copy of a module whose trainable parameters, gradients and buffers are three flat vectors."""

    def __init__(
        self,
        module: nn.Module,
        device: torch.device | str = "cpu",
        statistics: Collection[str] | None = None,
        personal: Collection[str] = (),
    ) -> None:
        self.module = copy.deepcopy(module).to(device)
        # What was left in evaluation mode stays so while the rest trains; a model that is so as a whole is trained.
        self._resting = [part for part in self.module.modules() if not part.training] if module.training else []
        named = [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]
        named.sort(key=lambda item: item[0] in personal)  # what never leaves a client lies behind the rest
        if not named:
            raise ConfigError("the model has no trainable parameters")
        dtypes = {p.dtype for _, p in named}
        if len(dtypes) > 1 or not named[0][1].is_floating_point():
            raise ConfigError(f"the model's parameters must share one floating type, not {sorted(map(str, dtypes))}")
        entries = _entries(list(named))
        self.layout = Layout(entries, _layers(self.module, entries), _norms(self.module, entries))
        dtype = named[0][1].dtype
        self.weights = torch.empty(self.layout.size, dtype=dtype, device=device)
        self.grad = torch.zeros_like(self.weights)
        self._parameters: tuple[Tensor, ...] = tuple(parameter for _, parameter in named)
        self._views = [entry.of(self.weights) for entry in entries]
        self._grads = [entry.of(self.grad) for entry in entries]
        for parameter, entry, grad in zip(self._parameters, entries, self._grads, strict=True):
            view = entry.of(self.weights)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = grad
        owners = {name.rpartition(".")[0] for name in personal}
        self._flatten_buffers(dtype, device, statistics, owners)
        self.shared = self._shared(personal, owners) if personal else self.layout
        self.shared_buffers = self.buffer_layout.size - self.shared.personal[1]

    def _shared(self, personal: Collection[str], owners: Collection[str]) -> Layout:
        """The layout without the layers that never leave a client."""
        entries = tuple(entry for entry in self.layout.entries if entry.name not in personal)
        layers = _layers(self.module, entries)
        own = [entry.size for entry in self.buffer_layout.entries if entry.name.rpartition(".")[0] in owners]
        rest = self.layout.size - sum(entry.size for entry in entries)
        return Layout(entries, layers, self.layout.norms, (rest, sum(own)))

    def _flatten_buffers(
        self,
        dtype: torch.dtype,
        device: torch.device | str,
        statistics: Collection[str] | None,
        owners: Collection[str],
    ) -> None:
        floating = [(n, b) for n, b in self.module.named_buffers() if b.is_floating_point()]
        named = [(n, b) for n, b in floating if statistics is None or n in statistics]
        named.sort(key=lambda item: item[0].rpartition(".")[0] in owners)
        self.buffer_layout = Layout(_entries(list(named)))
        self.buffers = torch.empty(self.buffer_layout.size, dtype=dtype, device=device)
        for (name, buffer), entry in zip(named, self.buffer_layout.entries, strict=True):
            owner, _, key = name.rpartition(".")
            view = entry.of(self.buffers)
            view.copy_(buffer)
            self.module.get_submodule(owner)._buffers[key] = view
        whole = [b for _, b in self.module.named_buffers() if not b.is_floating_point()]
        self._counters = [(counter, counter.clone()) for counter in whole]

    def mode(self, training: bool) -> None:
        """Training or evaluation mode; walking over all modules is worth avoiding for small models."""
        if self.module.training != training:
            self.module.train(training)
            for part in self._resting:
                part.training = False

    def differentiate(self, loss: Tensor) -> tuple[Tensor, ...]:
        """The gradient of ``loss``, one tensor for each parameter.

        What ``torch.autograd.grad`` gives, without its checks, which take a fifth of a small model's step.
        """
        found = Variable._execution_engine.run_backward(
            (loss,), (torch.ones_like(loss),), False, False, self._parameters, True, accumulate_grad=False
        )
        return tuple(torch.zeros_like(p) if g is None else g for p, g in zip(self._parameters, found, strict=True))

    def flat(self, gradient: tuple[Tensor, ...]) -> Tensor:
        """A gradient as one vector (``grad``, overwritten)."""
        torch._foreach_copy_(self._grads, gradient)
        return self.grad

    def descend(self, gradient: tuple[Tensor, ...], lr: float) -> None:
        """``weights -= lr * gradient`` without gathering the gradient first: the same bits, one pass less."""
        torch._foreach_add_(self._views, gradient, alpha=-lr)

    def load(self, weights: Tensor, buffers: Tensor) -> None:
        """Copy a model's vectors, or the beginning of them, in; counters (batch norm's batches) begin anew."""
        self.weights[: len(weights)].copy_(weights)
        self.buffers[: len(buffers)].copy_(buffers)
        for counter, start in self._counters:
            counter.copy_(start)

    def state_dict(self) -> dict[str, Tensor]:
        """The module's state under its usual names, in plain contiguous tensors of their own."""
        return {
            name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
            for name, tensor in self.module.state_dict().items()
        }

    def ordinary(self, like: nn.Module) -> nn.Module:
        """A module like the one that was given, with these weights, in tensors of their own; in evaluation mode."""
        module = copy.deepcopy(like)
        module.load_state_dict(self.state_dict())
        return module.eval()

    def save(self, path: Path) -> None:
        """Write the model as a safetensors file, atomically."""
        write_atomic(path, save(self.state_dict()))

    def read(self, path: Path) -> None:
        """Load weights that :meth:`save` (or any safetensors writer) wrote, refusing other shapes."""
        try:
            stored = load_file(path)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"model file {path}: cannot be read ({str(error).splitlines()[0]})") from None
        own = self.module.state_dict()
        for name, tensor in own.items():
            if name not in stored:
                raise ConfigError(f"model file {path}: has no tensor {name!r}")
            if stored[name].shape != tensor.shape:
                raise ConfigError(
                    f"model file {path}: {name!r} has shape {list(stored[name].shape)}, "
                    f"the model needs {list(tensor.shape)}"
                )
            if not torch.isfinite(stored[name]).all():
                raise ConfigError(f"model file {path}: {name!r} holds NaN or infinities")
        if extra := sorted(set(stored) - set(own)):
            raise ConfigError(f"model file {path}: unknown tensor {extra[0]!r}")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(stored[name])
            self._counters = [(counter, counter.clone()) for counter, _ in self._counters]
