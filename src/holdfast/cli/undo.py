"""`holdfast undo`: take back a change that was made from outside."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.asking import Rank, Seconds
from holdfast.cli.options import AsJson, Targets


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("undo")(undo)


def undo(
    number: Annotated[int, typer.Argument(min=1, metavar="N", help="Its number, as the journal tells it.")],
    target: Targets = None,
    seconds: Seconds = 30.0,
    rank: Rank = None,
    as_json: AsJson = False,
) -> None:
    """Take back a change: `set` gets its old value, `pause` goes on. What was saved or run cannot be undone.

    Changes that were made since stay. An undo has a number too, and can be undone.
    """
    from holdfast.cli.asking import change_all, finish

    told = change_all(target, {"do": "undo", "change": number}, seconds=seconds, rank=rank)
    finish(told, as_json=as_json, words=_words)


def _words(answer: dict[str, Any]) -> str:
    return f"{answer.get('value')} from step {answer.get('step')} on"
