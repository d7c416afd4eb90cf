"""Ranks that torchrun itself has started again (`--max-restarts`, or a node that joined or left): where they resume.

The supervisor sees nothing of such a restart, and its environment is still that of the attempt. Rank 0 looks for the newest
verified checkpoint, and tells the others.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import replace
from functools import cache
from typing import Any

from holdfast.checkpoints.manifest import Kept, kept_in
from holdfast.errors import CannotRestore
from holdfast.inside.control.restarted import ELASTIC, Restarted, restarted
from holdfast.signals.run_folder import RunFolder
from holdfast.state.ranks import RankNotes, current_rank
from holdfast.state.store import is_clean


@cache
def restarted_in(run: RunFolder) -> Restarted | None:
    """The settings of this attempt; after a restart by torchrun with the newest checkpoint of now, the same on all ranks."""
    restart = restarted()
    if os.environ.get(ELASTIC) != "1":
        return restart
    try:
        choice = RankNotes(run.path).choose(lambda: _choose(run))
    except CannotRestore:  # rank 0 does not train
        return restart
    return restart if choice is None else replace(restart or Restarted(attempt=1), **choice)


def _choose(run: RunFolder) -> dict[str, Any] | None:
    """On rank 0: the newest checkpoints; None if these are the first ranks of the attempt."""
    if not _has_trained_before(run):
        return None
    kept = list(reversed(kept_in(run.path / "checkpoints")))
    newest = next((checkpoint for checkpoint in kept if is_clean(checkpoint.path)), None)
    own = next((c for c in kept if c.manifest.get("made_by") != "guard" and is_clean(c.path)), None)
    with contextlib.suppress(OSError):
        origin = f"from {newest.path.name}" if newest is not None else "from the start: no clean checkpoint was saved"
        settings = {"by": "torchrun", "checkpoint_step": newest.step if newest is not None else None}
        row = {"action": "restart", "step": newest.step if newest is not None else 0, "because": "process-died", "settings": {}}
        run.journal.write("action", **row, **settings, state="done", detail=f"torchrun restarted the ranks, {origin}", rank=0)
    return {**_named(own, "checkpoint", "step"), **_named(newest, "kept", "kept_step")}


def _has_trained_before(run: RunFolder) -> bool:
    """Whether rank 0 has trained in this attempt already, in another process."""
    attempt = os.environ.get("HOLDFAST_ATTEMPT", "1")
    infos = [recording.info() for recording in run.recordings() if recording.rank == current_rank()]
    own = (socket.gethostname(), os.getpid())
    return any(str(info.get("attempt")) == attempt and (info.get("host"), info.get("pid")) != own for info in infos)


def _named(kept: Kept | None, path: str, step: str) -> dict[str, Any]:
    return {path: str(kept.path) if kept is not None else None, step: kept.step if kept is not None else None}
