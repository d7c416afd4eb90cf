"""The experiment trackers that a run can be sent to, and where a run keeps what was sent."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable

from holdfast.errors import UsageError

TRACKERS = ("mlflow", "tensorboard", "trackio", "wandb")
SENT = "sent"  # folder of the run folder: a file for each tracker says how far it has been sent


def read_trackers(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once; one that is not known is an error."""
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in TRACKERS:
            near = difflib.get_close_matches(name, TRACKERS, n=1)
            raise UsageError(f"there is no tracker {name!r}.", fix=f"--to {near[0] if near else ', '.join(TRACKERS)}")
    return wanted


def not_installed(names: Iterable[str]) -> list[str]:
    """Those whose package cannot be imported here; a folder of that name, as W&B makes one, is no package."""
    specs = {name: importlib.util.find_spec(name) for name in names}
    return [name for name, spec in specs.items() if spec is None or spec.origin is None]
