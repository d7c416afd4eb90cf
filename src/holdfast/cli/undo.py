"""`holdfast undo`: take back a change that was made from outside."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.asking import Rank, Seconds
from holdfast.cli.options import AsJson, Targets, all_of
from holdfast.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("undo")(undo)


def undo(
    words: Annotated[list[str], typer.Argument(metavar="[RUN]... N", help="Its number, as the journal tells it.")],
    target: Targets = None,
    seconds: Seconds = 30.0,
    rank: Rank = None,
    as_json: AsJson = False,
) -> None:
    """Take back a change: `set` gets its old value, `pause` goes on. What was saved or run cannot be undone.

    Changes that were made since stay. An undo has a number too, and can be undone.
    """
    from holdfast.cli.asking import change_all, finish

    *runs, number = words
    if not number.isdecimal() or int(number) < 1:
        raise UsageError(f"{number!r} is not the number of a change.", fix="holdfast journal --kind change lists them")
    told = change_all(all_of(runs, target), {"do": "undo", "change": int(number)}, seconds=seconds, rank=rank)
    finish(told, as_json=as_json, words=_words)


def _words(answer: dict[str, Any]) -> str:
    return f"{answer.get('value')} from step {answer.get('step')} on"
