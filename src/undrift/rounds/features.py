"""What a layer gives for the batch at hand, for rules that put it into the loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from undrift.core.nested import Nested, call
from undrift.core.tree import Tree, clone, copy_into
from undrift.core.vector import FlatModel
from undrift.errors import ConfigError
from undrift.rounds.work import Work
from undrift.rules.chain import Chain
from undrift.rules.rule import overrides


class BatchFeatures:
    """The features of one batch: noted while the trained model makes its forward pass, made again for other weights."""

    def __init__(self, work: Work, model: FlatModel) -> None:
        self.layer = _layer(work.rule)
        self._watch(model.module, "own")
        self.other = work.flat_model()
        self._watch(self.other.module, "others")
        self.other.mode(training=False)
        self.own = self.others = torch.empty(0)
        self.inputs: Nested = torch.empty(0)
        self.buffers = torch.empty(0)
        self.personal: Tree = {}

    def open(self, buffers: Tensor, personal: Tree) -> None:
        """A client's round begins, with these running statistics and layers of its own."""
        self.buffers, self.personal = buffers, clone(personal)

    def of(self, weights: Tensor) -> Tensor:
        """The features of a model with other weights, in evaluation mode."""
        self.other.load(weights, self.buffers)
        size, held = self.other.shared.size, self.other.shared_buffers
        copy_into(self.personal, {"layers": self.other.weights[size:], "buffers": self.other.buffers[held:]})
        with torch.no_grad():
            call(self.other.module, self.inputs)
        return self.others

    def _watch(self, module: nn.Module, name: str) -> None:
        if self.layer is None:
            last = _last_with_parameters(module)
            last.register_forward_pre_hook(lambda _, given: self._note(name, given[0]))
            return
        try:
            found = module.get_submodule(self.layer)
        except AttributeError:
            known = ", ".join(key for key, _ in module.named_modules() if key)
            raise ConfigError(f"layer = {self.layer!r}: the model has {known}") from None
        found.register_forward_hook(lambda _, given, out: self._note(name, out))

    def _note(self, name: str, features: Any) -> None:
        setattr(self, name, features.flatten(1))


def _layer(rule: Chain) -> str | None:
    return next(link.feature_layer for link in rule.links if overrides(link, "loss"))


def _last_with_parameters(module: nn.Module) -> nn.Module:
    owners = [part for part in module.modules() if list(part.parameters(recurse=False))]
    return owners[-1]
