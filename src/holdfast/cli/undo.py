"""`holdfast undo`: take back a change that was made from outside."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.live_requests import Rank, Seconds
from holdfast.cli.options import AsJson, Targets, all_of
from holdfast.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("undo")(undo)


def undo(
    arguments: Annotated[list[str], typer.Argument(metavar="[RUN]... N", help="Number of the change in the journal.")],
    target: Targets = None,
    seconds: Seconds = 30.0,
    rank: Rank = None,
    as_json: AsJson = False,
) -> None:
    """Revert a change: `set` restores the old value, `pause` resumes. A save, a rollback or an eval cannot be undone.

    Later changes stay. An undo has a number too, and can be undone.
    """
    from holdfast.cli.live_requests import change_all, finish

    *runs, number = arguments
    if not number.isdecimal() or int(number) < 1:
        named = " ".join([*all_of(arguments if not number.isdecimal() else runs, target), "--kind change"])
        raise UsageError(f"{number!r} is not the number of a change.", fix=f"holdfast journal {named} lists them")
    answers = change_all(all_of(runs, target), {"do": "undo", "change": int(number)}, seconds=seconds, rank=rank)
    finish(answers, as_json=as_json, sentence=_sentence)


def _sentence(answer: dict[str, Any]) -> str:
    return f"{answer.get('value')} from step {answer.get('step')} on"
