"""Every client's own model, the server's with the layers that it keeps, on its own test data."""

from __future__ import annotations

from undrift.core.tree import copy_into
from undrift.rounds.client_states import ClientStates
from undrift.rounds.evaluation import added, pieces, record_of
from undrift.rounds.progress import Record
from undrift.rounds.server_step import Server
from undrift.rounds.worker import Worker


def own_record(worker: Worker, states: ClientStates, server: Server) -> Record:
    """What is added to a round's record; nothing where clients have no test data."""
    work = worker.work
    (personal,) = work.rule.acting("personal_layers")
    scored = []
    for piece in pieces(work):
        if piece.client < 0:
            continue
        kept = (states.get(piece.client) or states.like)[personal.name]
        with worker.loaded(server.x[: len(worker.weights)], server.buffers[: len(worker.buffers)]):
            copy_into(worker.first_own, worker.own)
            personal.restore(kept, worker.own)
            scored.append((piece, worker.evaluate(piece).plain()))
    return record_of(work, added(scored))
