"""Clients that did not answer or were refused: how often, when and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from undrift.report.runs import Group

POINTS = 400
"""Rounds with losses told one by one; more are summed up."""


def losses(group: Group) -> Iterator[tuple[int, str, str]]:
    """(round, client, reason) of every loss."""
    for run in group.runs:
        for line in run.rounds:
            for one in line.get("lost") or ():
                client, reason = (one.get("client"), one.get("reason")) if isinstance(one, dict) else (one, "")
                yield int(line["round"]), str(client), str(reason or "no reason given")


def lost_by_round(group: Group) -> dict[str, Any] | None:
    """Clients lost in each round, over all runs of the group; None where none was."""
    counted = Counter(round for round, _, _ in losses(group))
    if not counted:
        return None
    width = max(1, -(-max(counted) // POINTS))
    bins = Counter({round // width * width: 0 for round in counted})
    for round, times in counted.items():
        bins[round // width * width] += times
    return {"round": sorted(bins), "lost": [bins[round] for round in sorted(bins)], "width": width}


def reasons(group: Group) -> list[tuple[str, int, str]]:
    """Every reason with how often it was given, and the clients it was given for, most often first."""
    by_reason: dict[str, Counter[str]] = {}
    for _, client, reason in losses(group):
        by_reason.setdefault(reason, Counter())[client] += 1
    told = [(reason, sum(who.values()), _few(who)) for reason, who in by_reason.items()]
    return sorted(told, key=lambda item: -item[1])


def turns(group: Group) -> int:
    """How many times clients of a group were drawn."""
    return sum(len(line.get("clients") or ()) for run in group.runs for line in run.rounds)


def _few(who: Counter[str], most: int = 8) -> str:
    shown = ", ".join(f"{client} ({times})" if times > 1 else client for client, times in who.most_common(most))
    return shown + (f" and {len(who) - most} more" if len(who) > most else "")
