"""`holdfast set`: change the learning rate, the weight decay or the clipping of a live training."""

from __future__ import annotations

import functools
from typing import Annotated

import typer

from holdfast.cli.live_requests import Rank, Seconds
from holdfast.cli.options import AllRuns, AsJson, Targets, all_of
from holdfast.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("set")(set_)


def set_(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[RUN]... SETTING...", help="lr=1e-4, 'lr*=0.1', 'lr[1]=1e-5', weight_decay=0, clip=1.0, clip=off"
        ),
    ],
    target: Targets = None,
    everything: AllRuns = False,
    seconds: Seconds = 30.0,
    rank: Rank = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of a live training between two steps, at the same step on every rank.

    `lr*=0.1` multiplies whatever the script or its scheduler sets. `lr=1e-4` sets it now; a schedule continues from there in
    proportion. `clip=1.0` clips the gradient norm at 1, until `clip=off`. [N] selects a parameter group. Changes are in the
    journal; `holdfast undo N` reverts one. A training on several machines is changed on all of them or on none: name the server
    of each.
    """
    from holdfast.cli.live_requests import change_all, change_words, finish, named_again

    settings = [word for word in arguments if "=" in word]
    runs = all_of([word for word in arguments if "=" not in word], target)
    if not settings:
        raise UsageError("there is no setting to change.", fix=f"holdfast set {' '.join(arguments)} lr=1e-4")
    for text in settings:
        answers = change_all(runs, {"do": "set", "text": text}, everything=everything, seconds=seconds, rank=rank)
        named = named_again(runs, answers)
        finish(answers, as_json=as_json, sentence=functools.partial(change_words, runs=named))
