"""The check-up of a run for the page and for agents: kept for a while, and made in a process of its own where it takes long.

`python -m holdfast.web.checkups FOLDER` prints one as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import anyio.to_thread

from holdfast.probe.niceness import be_nice
from holdfast.signals.run_folder import RunFolder
from holdfast.web.commands import json_of
from holdfast.web.runs import Watched
from holdfast.web.tabs import diagnosis

_LONG_STEPS = 20_000  # a check-up reads every step: about 13 s for a million
_FRESH_SECONDS = 15.0  # of a live run
_SECONDS = 600.0


async def checkup_of(watched: Watched) -> dict[str, Any]:
    """What `holdfast diagnose` says of a run."""
    glance = await anyio.to_thread.run_sync(watched.look)
    stamp = (len(glance.events), glance.state.alive)
    if watched.checkup is not None:
        before, when, answer = watched.checkup
        if before == stamp and (not glance.state.alive or time.monotonic() - when < _FRESH_SECONDS):
            return answer
    if glance.lead is not None and (glance.lead.step or 0) > _LONG_STEPS:
        answer = await json_of(["-m", "holdfast.web.checkups", str(watched.run.path)], "holdfast diagnose", seconds=_SECONDS)
    else:
        answer = await anyio.to_thread.run_sync(diagnosis, watched.run)
    watched.checkup = (stamp, time.monotonic(), answer)
    return answer


if __name__ == "__main__":
    be_nice()
    print(json.dumps(diagnosis(RunFolder.open(Path(sys.argv[1]))), ensure_ascii=False))
