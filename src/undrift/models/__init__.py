"""The papers' networks, each one `nn.Sequential` with readable child names, so that it can be cut anywhere.

`build` makes a model by name, `blocks` and `cut` divide it for split learning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from undrift.core.machine import memory_bytes
from undrift.core.words import unknown
from undrift.errors import ConfigError
from undrift.models import plain, resnet
from undrift.models.blocks import blocks, cut

__all__ = ["blocks", "build", "cut", "names"]

_MODELS: dict[str, Callable[..., nn.Sequential]] = {
    "cnn-emnist": plain.cnn_emnist,
    "cnn-cifar": plain.cnn_cifar,
    "cnn-adc": plain.cnn_adc,
    "cnn-split": plain.cnn_split,
    "vgg11": plain.vgg11,
    "resnet8": resnet.resnet8,
    "resnet18": resnet.resnet18,
    "mlp": plain.mlp,
    "linear": plain.linear,
}
_OPTIONS = {"norm": ("resnet8", "resnet18"), "width": ("vgg11", "resnet8", "resnet18"), "hidden": ("mlp",)}
_DEFAULTS = {"norm": "batch", "width": 1.0, "hidden": (200,)}
_INITS = ("torch", "glorot")


def names() -> tuple[str, ...]:
    """Return the names that `build` knows."""
    return tuple(_MODELS)


def build(
    name: str,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    norm: str = "batch",
    width: float = 1.0,
    hidden: Sequence[int] = (200,),
    init_scheme: str = "torch",
    seed: int = 0,
) -> nn.Sequential:
    """Build a network of the papers.

    Args:
        name: one of `names()`.
        input_shape: shape of one sample, (channels, height, width) for images.
        classes: number of outputs.
        norm: `"batch"` or `"group"`; ResNets only.
        width: factor on channels and hidden dense layers; VGG-11 and ResNets only.
        hidden: widths of the hidden layers; `mlp` only.
        init_scheme: `"torch"`, PyTorch's own, or `"glorot"` (Glorot & Bengio, 2010; TensorFlow's default,
            used by the server-learning papers): uniform weights, zero biases.
        seed: fixes the initial weights alone; torch's global random state is neither used nor changed.

    """
    options = {"norm": norm, "width": width, "hidden": tuple(hidden)}
    _check(name, input_shape, classes, init_scheme, options)
    own = {key: value for key, value in options.items() if name in _OPTIONS[key]}
    _check_size(name, tuple(input_shape), classes, own)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = _MODELS[name](tuple(input_shape), classes, **own)
        if init_scheme == "glorot":
            model.apply(_glorot)
    return model


def _check_size(name: str, shape: tuple[int, ...], classes: int, own: dict[str, Any]) -> None:
    """Refuse a model that this machine cannot hold (a run needs it several times), before it is made."""
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            size = sum(parameter.numel() * 4 for parameter in _MODELS[name](shape, classes, **own).parameters())
    except (RuntimeError, OverflowError):  # torch cannot even name so many bytes
        size = 1 << 62
    if 4 * size > memory_bytes():
        said = ", ".join(f"{key} = {list(v) if isinstance(v, tuple) else v}"[:60] for key, v in own.items())
        raise ConfigError(f"model.name = {name!r} ({said}): too large for this machine's memory")


def _glorot(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.xavier_uniform_(layer.weight)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _check(name: str, shape: Sequence[int], classes: int, init: str, options: dict[str, object]) -> None:
    if name not in _MODELS:
        raise ConfigError(unknown("model.name", name, _MODELS))
    for key, owners in _OPTIONS.items():
        if name not in owners and options[key] != _DEFAULTS[key]:
            raise ConfigError(f"model.{key} does not apply to {name!r}, only to {', '.join(owners)}")
    if not shape or min(shape) < 1:
        raise ConfigError(f"model.name = {name!r}: {tuple(shape)} is not the shape of a sample")
    if classes < 1:
        raise ConfigError(f"model.name = {name!r}: classes = {classes}; at least 1 is needed")
    if init not in _INITS:
        raise ConfigError(f"model.init_scheme = {init!r} is unknown; allowed: {', '.join(_INITS)}")
    _check_options(options)


def _check_options(options: dict[str, object]) -> None:
    norm, width, hidden = options["norm"], options["width"], options["hidden"]
    if norm not in resnet.NORMS:
        raise ConfigError(f"model.norm = {norm!r} is unknown; allowed: {', '.join(resnet.NORMS)}")
    if not isinstance(width, int | float) or not 0 < width < float("inf"):
        raise ConfigError(f"model.width = {width!r}; a positive number is needed")
    if not isinstance(hidden, tuple) or any(not isinstance(n, int) or n < 1 for n in hidden):
        raise ConfigError(f"model.hidden = {hidden!r}; a list of positive whole numbers is needed")
