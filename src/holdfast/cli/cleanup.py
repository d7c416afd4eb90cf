"""`holdfast cleanup`: have a live training give back memory that it does not need."""

from __future__ import annotations

from typing import Any

import typer

from holdfast.cli.asking import Rank, Seconds
from holdfast.cli.options import AsJson, RunNames, Targets, all_of

_WHAT = {"host": "host memory", "gpu_allocated": "GPU memory in use", "gpu_reserved": "GPU memory that torch kept"}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("cleanup")(cleanup)


def cleanup(
    runs: RunNames = None, target: Targets = None, seconds: Seconds = 30.0, rank: Rank = None, as_json: AsJson = False
) -> None:
    """Drop the gradients of the step that is over, collect garbage, and give the GPU memory that torch keeps back.

    The update that the gradients were for is made. A script that reads them between `step()` and `zero_grad()` finds none once.
    """
    from holdfast.cli.asking import change_all, finish

    told = change_all(all_of(runs, target), {"do": "cleanup"}, seconds=seconds, rank=rank)
    finish(told, as_json=as_json, words=_words)


def _words(answer: dict[str, Any]) -> str:
    from holdfast.cli.show import size

    freed = ", ".join(f"{size(value)} of {_WHAT.get(name, name)}" for name, value in (answer.get("freed") or {}).items())
    return f"freed {freed or 'nothing'}; {answer.get('objects', 0):,} objects collected"
