"""Do the parts of a run fit together? Checked, and bound to each other, before round 1."""

from __future__ import annotations

from torch import nn

from undrift.core.vector import FlatModel
from undrift.data.federation import Federation
from undrift.errors import ConfigError
from undrift.rounds.plan import Plan
from undrift.rounds.split.binding import bind_split
from undrift.rounds.worker import Loss, Work
from undrift.rules.chain import Chain, chain
from undrift.rules.rehearsal import rehearse
from undrift.rules.rule import Owns, RoundKind, Rule


def prepare(module: nn.Module, rule: Rule, federation: Federation, plan: Plan, loss: Loss, device: str) -> Work:
    """Check that the parts fit together, and bind them."""
    whole = rule if isinstance(rule, Chain) else chain(rule)
    _check_server_data(whole, federation, plan)
    owner = whole.owner_of(Owns.SERVER_STEP)
    if owner is not None and plan.server_lr != 1.0:
        raise ConfigError(
            f"train.server_lr = {plan.server_lr!r}: {owner.name!r} owns the server step, only 1 is allowed"
        )
    if plan.cohort is not None and plan.cohort > len(federation):
        raise ConfigError(f"train.cohort = {plan.cohort}: there are only {len(federation)} clients")
    model = FlatModel(module, device)
    bound = whole.bind(model.layout) if whole.kind is RoundKind.FULL else bind_split(whole, module, plan)
    rehearse(bound, model.weights)
    return Work(module, bound, whole.federate(federation, plan.seed), plan, loss, device)


def _check_server_data(whole: Chain, federation: Federation, plan: Plan) -> None:
    if federation.server is not None:
        return
    for link in whole.links:
        if link.needs_server_data:
            raise ConfigError(f"algorithm {link.name!r} needs server data: give [server_data] (Python: server_data=)")
    if plan.pretrain_epochs:
        raise ConfigError("train.pretrain_epochs: pre-training needs server data")
