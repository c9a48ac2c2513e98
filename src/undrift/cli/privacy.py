"""``undrift privacy``: what a configuration's differential privacy will have cost, without running it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from undrift.rules.privacy import Dp

EPSILONS = (1.0, 2.0, 4.0, 8.0)


def privacy(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="A configuration with dp in its algorithm.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. train.rounds=200.")
    ] = None,
    targets: Annotated[
        list[float] | None, typer.Option("--epsilon", metavar="E", help="A wanted epsilon; may be given several times.")
    ] = None,
) -> None:
    """The epsilon that a configuration will have spent after its rounds, and the noise that a wanted one needs.

    Example: undrift privacy experiment.toml --epsilon 4
    """
    from undrift.core.plugins import load
    from undrift.errors import ConfigError
    from undrift.experiment.config import read
    from undrift.experiment.from_config import clients_of
    from undrift.rules.accounting import by_loss, by_renyi, epsilon, noise_for
    from undrift.rules.privacy import Dp

    settings = read(config, overrides or ())
    rule = next((link for link in settings.rule().links if isinstance(link, Dp)), None)
    if rule is None:
        raise ConfigError(f"algorithm.name = {settings.algorithm['name']!r}: has no 'dp' in it, so no epsilon")
    for target in targets or ():
        if not target > 0:
            raise ConfigError(f"--epsilon {target}: must be above 0")
    load("dp_accounting:GaussianDpEvent", "undrift privacy", "privacy")
    population, rounds = clients_of(settings), settings.train.rounds
    cohort = settings.train.cohort or population
    if cohort > population:
        raise ConfigError(f"train.cohort = {cohort}: there are only {population} clients")
    q = cohort / population
    typer.echo(
        f"{population} clients, each in a round with probability {q:.4g}; clip {rule.clip:g}, noise {rule.noise:g}, "
        f"delta {rule.delta:g}"
    )
    spent = epsilon(q, rule.noise, rule.delta, rounds)
    typer.echo(
        f"epsilon after {rounds} rounds: {spent:.3f} (Renyi DP {by_renyi(q, rule.noise, rule.delta, rounds):.3f}, "
        f"privacy loss distributions {by_loss(q, rule.noise, rule.delta, rounds):.3f})"
    )
    if rule.delta > 1 / population:
        typer.echo(f"delta is above 1/{population}: it should be well below one over the number of clients")
    if rule.budget is not None:
        typer.echo(f"budget {rule.budget:g}: {_rounds_within(q, rule, rounds)} of {rounds} rounds fit into it")
    for target in targets or EPSILONS:
        typer.echo(f"epsilon {target:g} after {rounds} rounds: noise {noise_for(q, target, rule.delta, rounds):.3f}")


def _rounds_within(q: float, rule: Dp, rounds: int) -> int:
    """How many rounds a budget is enough for."""
    from undrift.rules.accounting import epsilon

    assert rule.budget is not None, "only a budget can be used up"
    low, high = 0, rounds + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon(q, rule.noise, rule.delta, middle) <= rule.budget else (low, middle)
    return low
