"""A short probe of one federation, and what follows from it: which algorithm, with which settings."""

from undrift.diagnose.advice import Advice, advise
from undrift.diagnose.probe import Findings, plan_probe, probe

__all__ = ["Advice", "Findings", "advise", "plan_probe", "probe"]
