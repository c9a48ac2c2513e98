"""What is learnt, and how it is scored: one small object decides loss, prediction and what is counted."""

from undrift.tasks.known import TASKS, Binary, Classification, LanguageModel, LossOnly, Multilabel, Regression
from undrift.tasks.task import Loss, Sums, Task

__all__ = [
    "TASKS",
    "Binary",
    "Classification",
    "LanguageModel",
    "Loss",
    "LossOnly",
    "Multilabel",
    "Regression",
    "Sums",
    "Task",
]
