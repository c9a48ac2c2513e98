"""Blocks of a sequential model, and cutting it in two for split learning.

A block is a layer with parameters together with the parameter-free layers after it. Norm layers belong to the
block before them, and what stands before the first such layer belongs to the first block.
"""

from __future__ import annotations

import copy
from collections import OrderedDict

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.dropout import _DropoutNd

from undrift.errors import ConfigError

__all__ = ["blocks", "cut"]

_NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def blocks(model: nn.Sequential) -> list[tuple[str, ...]]:
    """Return the names of the top-level children of every block, from the input to the output."""
    found: list[list[str]] = []
    before: list[str] = []
    for name, child in model.named_children():
        if _has_parameters(child) and not isinstance(child, _NORMS):
            found.append([*before, name])
            before = []
        else:
            (found[-1] if found else before).append(name)
    return [tuple(names) for names in found]


def cut(model: nn.Sequential, where: int | str) -> tuple[nn.Sequential, nn.Sequential]:
    """Cut `model` into a client's and a server's part that share its parameters and buffers.

    `where` is the number of blocks at the client, or the name of the last top-level child there. Both parts
    must have parameters. Child names stay, so the parts' parameter names are those of the model.
    """
    children = list(model.named_children())
    names = [name for name, _ in children]
    at = names.index(_last_at_client(model, where)) + 1
    client, server = children[:at], children[at:]
    for side, part in (("client", client), ("server", server)):
        if not any(_has_parameters(child) for _, child in part):
            raise ConfigError(f"cut = {where!r} leaves the {side} without parameters; {_allowed(model)}")
    name, head = server[0]
    return _sequential(client), _sequential([(name, _out_of_place(head)), *server[1:]])


def _last_at_client(model: nn.Sequential, where: int | str) -> str:
    found = blocks(model)
    if isinstance(where, str):
        if where not in dict(model.named_children()):
            raise ConfigError(f"cut = {where!r} is not a layer of the model; {_allowed(model)}")
        return where
    if not 1 <= where < len(found):
        raise ConfigError(f"cut = {where} of {len(found)} blocks; {_allowed(model)}")
    return found[where - 1][-1]


def _allowed(model: nn.Sequential) -> str:
    found = blocks(model)
    if len(found) < 2:
        return "a model of fewer than two blocks cannot be cut"
    children = list(model.named_children())
    owning = [i for i, (_, child) in enumerate(children) if _has_parameters(child)]
    inside = ", ".join(name for name, _ in children[owning[0] : owning[-1]])
    return f"allowed: 1 to {len(found) - 1} blocks at the client, or its last layer, one of {inside}"


def _sequential(children: list[tuple[str, nn.Module]]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(children))


def _out_of_place(layer: nn.Module) -> nn.Module:
    # The server differentiates with respect to what it receives; autograd forbids overwriting that.
    if not getattr(layer, "inplace", False) or isinstance(layer, _DropoutNd):
        return layer
    twin = copy.copy(layer)
    vars(twin)["inplace"] = False
    return twin


def _has_parameters(layer: nn.Module) -> bool:
    return next(layer.parameters(), None) is not None
