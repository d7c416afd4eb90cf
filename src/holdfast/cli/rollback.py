"""`holdfast rollback`: put a live training back to a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.live_requests import Seconds
from holdfast.cli.options import AsJson, RunNames, Targets, all_of


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("rollback")(rollback)


def rollback(
    runs: RunNames = None,
    target: Targets = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="STEP|NAME|best",
            help="A step, the name or path of a checkpoint, or best. (default: the newest clean one)",
            show_default=False,
        ),
    ] = None,
    seconds: Seconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Put a live training back to one of its checkpoints, at the same step on every rank, and let it continue from there.

    Weights, optimizer, schedulers, gradient scaler and averages are restored; a damaged checkpoint is skipped for an older one.
    The loop continues with its next batch, the step count continues, and changes made with `set` stay. To undo a rollback, roll
    back to a checkpoint that `holdfast save` made before it.
    """
    from holdfast.cli.live_requests import change_all, finish

    path = str(Path(to).absolute()) if to is not None and "/" in to else to
    finish(change_all(all_of(runs, target), {"do": "rollback", "to": path}, seconds=seconds), as_json=as_json, sentence=_sentence)


def _sentence(answer: dict[str, Any]) -> str:
    skipped = "".join(f"\n  skipped: {why}" for why in answer.get("skipped") or ())
    return f"{answer.get('value')}; the training continues from it at step {answer.get('step')}{skipped}"
