"""`holdfast pause`: a live training waits between two steps."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.live_requests import Seconds
from holdfast.cli.options import AsJson, RunNames, Targets, all_of


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("pause")(pause)


def pause(
    runs: RunNames = None,
    target: Targets = None,
    length: Annotated[
        float | None, typer.Option("--for", min=0.1, metavar="S", help="Resume after this many seconds.", show_default=False)
    ] = None,
    seconds: Seconds = 30.0,
    as_json: AsJson = False,
) -> None:
    """Pause a live training between two steps, at the same step on every rank, until `holdfast continue`.

    eval, set and save still work. A pause does not count as step time or as a hang.
    """
    from holdfast.cli.live_requests import change_all, finish, named_again

    named = all_of(runs, target)
    answers = change_all(named, {"do": "pause", "for": length}, seconds=seconds)
    resume = " ".join(["holdfast continue", *named_again(named, answers)])

    def sentence(answer: dict[str, Any]) -> str:
        return f"{answer.get('value')} before step {answer.get('step')}; resume with: {resume}"

    finish(answers, as_json=as_json, sentence=sentence)
