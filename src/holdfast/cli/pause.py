"""`holdfast pause`: have a live training wait between two steps."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.asking import Seconds
from holdfast.cli.options import AsJson, RunNames, Targets, all_of


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("pause")(pause)


def pause(
    runs: RunNames = None,
    target: Targets = None,
    length: Annotated[
        float | None, typer.Option("--for", min=0.1, metavar="S", help="Go on by itself after so long.", show_default=False)
    ] = None,
    seconds: Seconds = 30.0,
    as_json: AsJson = False,
) -> None:
    """Have a live training wait between two steps, all ranks between the same two, until `holdfast continue`.

    It still answers meanwhile: eval, set, save. The time is not counted as time of a step, and is not taken for a hang.
    """
    from holdfast.cli.asking import change_all, finish

    request = {"do": "pause", "for": length}
    finish(change_all(all_of(runs, target), request, seconds=seconds), as_json=as_json, words=_words)


def _words(answer: dict[str, Any]) -> str:
    return f"{answer.get('value')} before step {answer.get('step')}; continue with: holdfast continue"
