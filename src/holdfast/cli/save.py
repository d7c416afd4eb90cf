"""`holdfast save`: have a live training save a checkpoint at its next step, and verify it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.live_requests import Seconds
from holdfast.cli.options import AsJson, Targets, all_of
from holdfast.errors import NoSuchRun


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("save")(save)


def save(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|PATH",
            help="A checkpoint folder. (default: the run's own folder)",
            show_default=False,
        ),
    ] = None,
    target: Targets = None,
    seconds: Seconds = 60.0,
    as_json: AsJson = False,
) -> None:
    """Save the state of a live training at the next step, and verify every byte of it.

    The folder gets a Holdfast checkpoint: weights, optimizer, schedulers, random state, and position in the data if known.
    """
    from holdfast.cli.checkpoints.paths import run_named
    from holdfast.cli.live_requests import change_all, finish
    from holdfast.probe.address import is_server
    from holdfast.probe.far_rank import FarRank

    *runs, last = arguments or [""]
    path = None if not last or is_server(last) or run_named(last) is not None else Path(last).expanduser()
    if path is not None and path.name == last and not path.suffix and not path.exists():  # a mistyped name makes no folder
        raise NoSuchRun(f"there is no run {last!r}.", fix=f"holdfast ps lists the live runs; a folder: holdfast save ./{last}")
    runs += [last] if last and path is None else []
    request = {"do": "save", "path": str(path.absolute()) if path is not None else None}
    answers = change_all(all_of(runs, target), request, seconds=seconds)
    for answer in answers:
        if answer.ok and answer.answer.get("writes") and not isinstance(answer.recording, FarRank):
            _verify(answer.answer)
    written = [answer for answer in answers if not answer.ok or answer.answer.get("writes")] or answers
    finish(written, as_json=as_json)


def _verify(answer: dict[str, Any]) -> None:
    """Read it back here too; what is not clean is a failure."""
    from holdfast.cli.checkpoints.paths import chosen
    from holdfast.cli.checkpoints.progress import Bar

    with Bar(chosen([str(answer["path"])])) as bar:
        states = [verdict.state for _, verdict in bar.verified()]
    answer["state"] = states[0] if len(set(states)) == 1 else ", ".join(states)
    if set(states) != {"clean"}:
        answer |= {"ok": False, "error": f"{answer['path']} is {answer['state']}; see: holdfast checkpoints verify"}
    else:
        print(f"step {answer.get('step')} saved and verified: clean", file=sys.stderr)
