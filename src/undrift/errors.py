"""One tree of exceptions: what the user got wrong, and what went wrong otherwise."""

from __future__ import annotations


class UndriftError(Exception):
    """Base class of everything that undrift raises on purpose."""


class InputError(UndriftError):
    """The user's input is wrong; the message names the culprit and what is allowed (exit code 2)."""


class ConfigError(InputError):
    """A configuration key, a value or a combination of algorithms that cannot be used."""


class DataError(InputError):
    """A data file that is missing, damaged or does not hold what is needed; an impossible partition."""


class RunError(UndriftError):
    """A run that failed although its input was right (exit code 1)."""


class DivergedError(RunError):
    """The loss or an update is no longer finite; the message names the round and the clients."""


class MessageError(RunError):
    """What a client sent cannot be decoded; the client counts as lost."""


class UnreadableError(RunError):
    """A file that is not what it must be: missing, cut short, damaged, endless; the message names it."""


class RunWarning(UserWarning):
    """Something about a run that its owner should know, although it goes on."""
