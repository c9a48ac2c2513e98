"""What went wrong, in one line that says where: for errors in code that users bring (rules, models, data sets)."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import TracebackType

_OURS = str(Path(__file__).parents[1])
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib"))


def describe(error: BaseException) -> str:
    """``KeyError: 'nope' (mine.py, line 12, in gradient)``: the innermost place outside of libraries and undrift."""
    text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}".removesuffix(": ")
    place = _place(error.__traceback__)
    return f"{text} ({place})" if place else text


def _place(trace: TracebackType | None) -> str:
    inner = own = ""
    while trace is not None:
        code, line = trace.tb_frame.f_code, trace.tb_lineno
        inner = f"{Path(code.co_filename).name}, line {line}, in {code.co_name}"
        if not code.co_filename.startswith((_OURS, *_LIBRARIES, "<frozen")):
            own = inner
        trace = trace.tb_next
    return own or inner
