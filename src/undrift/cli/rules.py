"""``undrift rules``: what the parts of an algorithm are, and which go together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from undrift.rules.describe import Description


def rules(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these rules.")] = None,
) -> None:
    """What every rule does, its parameters, what it owns, what it sends, and what it cannot go with.

    Example: undrift rules dp topk
    """
    from undrift.core.words import nearest
    from undrift.errors import ConfigError
    from undrift.rules import RULES
    from undrift.rules.describe import describe

    for name in names or ():
        if name not in RULES:
            raise ConfigError(f"no rule {name!r}: {nearest(name, RULES)}")
    for name in names or RULES:
        typer.echo("\n".join(lines(describe(name))) + "\n")
    typer.echo('Rules are joined with +, as in algorithm.name = "fedpvr+fsl"; sizes are in models a round and client.')


def lines(rule: Description) -> list[str]:
    """A rule in a few lines."""
    found = [rule.name, f"  {rule.does}"]
    if rule.parameters:
        found.append("  parameters  " + ", ".join(f"{key} = {_shown(value)}" for key, value in rule.parameters.items()))
    if rule.owns:
        found.append(f"  owns        {'; '.join(rule.owns)}")
    found.append(f"  sends       {_messages(rule)}")
    if rule.uniform:
        found.append('  needs       train.weighting = "uniform"')
    if rule.only_before:
        found.append(f"  stands      before {', '.join(rule.only_before)}")
    for reason, others in rule.against.items():
        found.append(f"  not with    {', '.join(others)}: {reason}")
    return found


def _messages(rule: Description) -> str:
    if rule.messages is None:
        if "everything" in rule.owns:
            return "nothing"
        return "activations up and their gradients down in every step, the clients' part of the model in every round"
    sizes = rule.messages
    kept = f"; a client keeps {sizes.kept:.2f}" if sizes.kept else ""
    return f"{sizes.down:.2f} down, {sizes.up:.2f} up{kept}"


def _shown(value: object) -> str:
    return "none" if value is None else repr(value)
