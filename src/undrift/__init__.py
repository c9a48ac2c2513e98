"""undrift: federated learning when the clients' data are not alike.

Drift controls that compose: every algorithm is FedAvg plus rules, joined with ``+``.
"""

import importlib
import typing

from undrift.core.processor import avoid_broken_amx as _avoid_broken_amx
from undrift.core.version import VERSION

if typing.TYPE_CHECKING:
    from undrift.public import *  # noqa: F403
    from undrift.public import __all__ as __all__

__version__ = VERSION

_avoid_broken_amx()  # before anything computes with PyTorch


def __getattr__(name: str) -> typing.Any:
    """What the package offers (``undrift.public``), imported when it is first asked for: PyTorch takes a second."""
    public = importlib.import_module("undrift.public")
    if name in globals():  # a package that was imported on the way
        return globals()[name]
    if name != "__all__" and name not in public.__all__:
        raise AttributeError(f"module 'undrift' has no attribute {name!r}")
    return globals().setdefault(name, getattr(public, name))


def __dir__() -> list[str]:
    return sorted({*__getattr__("__all__"), *globals()})
