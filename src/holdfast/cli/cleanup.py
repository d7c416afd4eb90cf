"""`holdfast cleanup`: have a live training give back memory that it does not need."""

from __future__ import annotations

from typing import Any

import typer

from holdfast.cli.live_requests import Rank, Seconds
from holdfast.cli.options import AsJson, RunNames, Targets, all_of

_MEMORY_NAMES = {"host": "host memory", "gpu_allocated": "GPU memory in use", "gpu_reserved": "GPU memory that torch kept"}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("cleanup")(cleanup)


def cleanup(
    runs: RunNames = None, target: Targets = None, seconds: Seconds = 30.0, rank: Rank = None, as_json: AsJson = False
) -> None:
    """Free memory of a live training: gradients of the last step, garbage, cached GPU memory.

    The update has already been made. A script that reads gradients between `step()` and `zero_grad()` finds None once.
    """
    from holdfast.cli.live_requests import change_all, finish

    answers = change_all(all_of(runs, target), {"do": "cleanup"}, seconds=seconds, rank=rank)
    finish(answers, as_json=as_json, sentence=_sentence)


def _sentence(answer: dict[str, Any]) -> str:
    from holdfast.cli.show import size

    freed = ", ".join(f"{size(value)} of {_MEMORY_NAMES.get(name, name)}" for name, value in (answer.get("freed") or {}).items())
    return f"freed {freed or 'nothing'}; {answer.get('objects', 0):,} objects collected"
