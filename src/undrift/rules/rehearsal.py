"""A dry run of a rule's hooks, on copies, before round 1: what it sends and keeps, and what it does that it must not.

Every hook of every link is called once. What is found wrong is refused with the rule's and the hook's name: something
else than tensors in messages or memory, a hook that returns a value where it is to change its argument, or changes an
argument where it is to return a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from undrift.core.streams import HookRandom
from undrift.core.tree import Tree, clone, flatten
from undrift.core.trouble import describe
from undrift.errors import ConfigError, RunError, UndriftError
from undrift.rules.chain import Chain
from undrift.rules.rule import ClientAt, Rule, ServerAt, overrides


@dataclass(frozen=True)
class Rehearsed:
    """What a chain's messages and memories look like."""

    state: Tree
    down: Tree
    up: Tree
    kept: Tree
    asks_full_gradient: bool
    """Whether clients compute full-batch gradients."""
    sent: Tree
    """Update and messages as they are sent."""
    forms: tuple[Tree, ...] = ()
    """What each of the links that encode was given."""


def rehearse(rule: Chain, x: Tensor, personal: tuple[int, int] = (0, 0)) -> Rehearsed:
    """Call every hook of every link once, on copies; ``x`` is a model as the hooks will see it.

    ``personal``: how many weights and buffers are in layers that never leave a client.
    """
    with torch.random.fork_rng(devices=[]):  # a hook may draw from the default generator
        rehearsals = {link.name: _Rehearsal(link, x, personal) for link in rule.links}
        parts = {name: one.go() for name, one in rehearsals.items()}
        sent: Tree = {"delta": torch.zeros_like(x), "up": {name: part.up for name, part in parts.items()}}
        forms: tuple[Tree, ...] = ()
        for link in rule.encoders:
            decoded = partial(rule.undone, forms=forms)
            forms = (*forms, sent)
            sent = rehearsals[link.name].encode(sent, decoded)
        for link in rule.receivers:
            rehearsals[link.name].form("receive", forms[0] if forms else sent)
    return Rehearsed(
        {name: part.state for name, part in parts.items()},
        {name: part.down for name, part in parts.items()},
        {name: part.up for name, part in parts.items()},
        {name: part.kept for name, part in parts.items()},
        any(part.asks_full_gradient for part in parts.values()),
        sent,
        forms,
    )


class _Batch:
    """Features of two samples, for links that look at them."""

    def __init__(self, x: Tensor) -> None:
        self.own = torch.ones(2, 3, dtype=x.dtype, device=x.device)

    def of(self, weights: Tensor) -> Tensor:
        return self.own


class _Rehearsal:
    def __init__(self, link: Rule, x: Tensor, personal: tuple[int, int]) -> None:
        self.link, self.x = link, x
        self.own: Tree = {name: x.new_zeros(size) for name, size in zip(("layers", "buffers"), personal, strict=True)}
        self.asked = False

    def go(self) -> Rehearsed:
        given: Tree = {"x": self.x.clone()}
        with self._unchanged("init_server", lambda: given):
            state = self._tree("init_server", self._call("init_server", given["x"]))
        with self._unchanged("init_client", lambda: given):
            kept = self._tree("init_client", self._call("init_client", given["x"]))
        with self._unchanged("down", lambda: {"state": state}):
            down = self._tree("down", self._call("down", state, 1))
        state, down, kept = clone(state), clone(down), clone(kept)  # they may share memory with each other
        random = HookRandom(0, 1, 0, self.link.name)
        at = ClientAt(self.x.clone(), clone(down), clone(kept), 1.0, 1, 1, self._full_gradient, random, own=self.own)
        self.at, self.kept = at, kept
        with self._unchanged("start", lambda: {"x": at.x, "down": at.down, "kept": at.kept}):
            at.local = self._call("start", at)
        up = self._client_steps(at, kept)
        self._server_steps(state, up)
        return Rehearsed(state, down, up, kept, self.asked, {})

    def encode(self, sent: Tree, decoded: Callable[[Tree], Tree]) -> Tree:
        """What is sent instead of ``sent``; what the server makes of it must have the form of ``sent``."""
        at = replace(self.at, decoded=decoded)
        with self._unchanged("encode", lambda: {"sent": sent, "kept": at.kept}):
            both = self._call("encode", clone(sent), at)
        if not isinstance(both, tuple) or len(both) != 2:
            raise self._wrong("encode", f"must return what is sent and what is kept, not {type(both).__name__}")
        for path, leaf in flatten(both[0]).items():
            if not isinstance(leaf, Tensor):
                raise self._wrong("encode", f"gives {path} = {leaf!r}; only tensors can be sent")
        self._same("encode", "what a client keeps", self.kept, self.new | self._tree("encode", both[1]))
        self._same("decode", "what is sent", sent, self._call("decode", clone(both[0]), sent))
        sent_instead: Tree = both[0]
        return sent_instead

    def form(self, hook: str, sent: Tree) -> None:
        """A hook that must give something of the form that it was given."""
        self._same(hook, "what is sent", sent, self._call(hook, clone(sent)))

    def _client_steps(self, at: ClientAt, kept: Tree) -> Tree:
        y, g, given = self.x.clone(), torch.zeros_like(self.x), {"x": at.x, "down": at.down, "kept": at.kept}
        if not isinstance(self._call("loss", g.sum(), _Batch(self.x), at), Tensor):
            raise self._wrong("loss", "must return the loss")
        for hook, arguments in (("shift", (y, at)), ("push", (g, at, 1.0)), ("gradient", (g, y, at))):
            with self._unchanged(hook, lambda: given):
                if self._call(hook, *arguments) is not None:
                    raise self._wrong(hook, "returns a value, which nobody takes: change the first argument in place")
        delta = torch.zeros_like(self.x)
        with self._unchanged("up", lambda: given | {"delta": delta}):
            both = self._call("up", delta, at)
        if not isinstance(both, tuple) or len(both) != 2:
            raise self._wrong("up", f"must return what is sent and what is kept, not {type(both).__name__}")
        up, self.new = (self._tree("up", tree) for tree in both)
        if not overrides(self.link, "encode"):  # which may have more to keep
            self._same("up", "what a client keeps", kept, self.new)
        return up

    def _server_steps(self, state: Tree, up: Tree) -> None:
        zero = torch.zeros_like(self.x)
        at = ServerAt(
            x=self.x.clone(),
            state=clone(state),
            up=clone(up),
            delta=zero.clone(),
            share=1.0,
            lr=1.0,
            server_lr=1.0,
            round=1,
            rounds=1,
            population=1,
            samples=1,
            mean_steps=1.0,
            mean_visits=1.0,
            batch_size=1,
            server_samples=1,
            learn=lambda start, lr, **_: start.clone(),
            random=HookRandom(0, 1, None, self.link.name),
        )
        given = {"x": at.x, "state": at.state, "up": at.up, "delta": at.delta}
        with self._unchanged("mean", lambda: given):
            self._vector("mean", self._call("mean", at.delta, at))
        with self._unchanged("server", lambda: given):
            both = self._call("server", zero, at)
        if not isinstance(both, tuple) or len(both) != 2:
            raise self._wrong("server", f"must return the step and the new memory, not {type(both).__name__}")
        self._vector("server", both[0])
        self._same("server", "the server's memory", state, self._tree("server", both[1]))
        with self._unchanged("after", lambda: given):
            self._vector("after", self._call("after", self.x.clone(), at))

    def _full_gradient(self) -> Tensor:
        self.asked = True
        return torch.zeros_like(self.x)

    def _call(self, hook: str, *arguments: Any) -> Any:
        try:
            return getattr(self.link, hook)(*arguments)
        except UndriftError:
            raise
        except Exception as error:
            raise RunError(f"rule {self.link.name!r}, hook {hook}: {describe(error)}") from error

    def _wrong(self, hook: str, what: str) -> ConfigError:
        return ConfigError(f"rule {self.link.name!r}: {hook} {what}")

    def _tree(self, hook: str, tree: Any) -> Tree:
        if not isinstance(tree, dict):
            raise self._wrong(hook, f"must return a dictionary of tensors, not {type(tree).__name__}")
        for path, leaf in flatten(tree).items():
            if not isinstance(leaf, Tensor):
                raise self._wrong(hook, f"gives {path} = {leaf!r}; only tensors can be sent and kept")
            if leaf.dtype != self.x.dtype:
                raise self._wrong(hook, f"gives {path} of {leaf.dtype}; it must be {self.x.dtype}, as the model is")
        return tree

    def _vector(self, hook: str, vector: Any) -> None:
        if not isinstance(vector, Tensor) or vector.shape != self.x.shape:
            found = list(vector.shape) if isinstance(vector, Tensor) else type(vector).__name__
            raise self._wrong(hook, f"must return a vector of shape {list(self.x.shape)}, got {found}")

    def _same(self, hook: str, what: str, before: Tree, after: Tree) -> None:
        old, new = ({path: leaf.shape for path, leaf in flatten(tree).items()} for tree in (before, after))
        if old != new:
            path = next(p for p in sorted(old.keys() | new.keys()) if old.get(p) != new.get(p))
            shapes = [list(side[path]) if path in side else "nothing" for side in (old, new)]
            raise self._wrong(hook, f"changes the form of {what}: {path} was {shapes[0]} at first, is {shapes[1]} now")

    @contextmanager
    def _unchanged(self, hook: str, given: Callable[[], Tree]) -> Iterator[None]:
        before = clone(given())
        yield
        for (path, old), new in zip(flatten(before).items(), flatten(given()).values(), strict=True):
            if not torch.equal(old, new):
                raise self._wrong(hook, f"changes {path} in place; work on a copy")
