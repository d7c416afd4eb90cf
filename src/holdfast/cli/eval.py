"""`holdfast eval`: run code inside a live training, between two of its steps."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.cli.live_requests import Rank, Seconds
from holdfast.cli.options import AsJson, Targets, all_of


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("eval")(eval_)


def eval_(
    arguments: Annotated[
        list[str],
        typer.Argument(metavar="[RUN]... CODE", help="Python code; - reads stdin.", show_default=False),
    ],
    target: Targets = None,
    now: Annotated[bool, typer.Option("--now", help="Run at once in a side thread; tensors only if hung or paused.")] = False,
    seconds: Seconds = 30.0,
    rank: Rank = None,
    all_ranks: Annotated[
        bool, typer.Option("--all", "--all-ranks", help="In every rank; without -t, of all live runs here.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run Python code inside a live training between two steps; prints its output and the value of its last line.

    The code sees the variables of the training loop. `model`, `optimizer`, `scheduler`, `train_loader` and `trainer` work even
    if the script names them differently. One run: its first rank. Several runs or servers: every rank, labelled with machine,
    run and rank. Exit code 1: the code raised an error, or a server did not answer.
    """
    from holdfast.cli.cluster_words import end, say_problems
    from holdfast.cli.live_requests import finish
    from holdfast.probe.changing import evaluate
    from holdfast.probe.cluster import find
    from holdfast.probe.cluster_ranks import crews_of, ranks_in, refuse_several

    *runs, code = arguments
    named = all_of(runs, target)
    text = sys.stdin.read() if code == "-" else code
    cluster = find(named, everything=all_ranks and not named, live=True)
    if not all_ranks:
        refuse_several(cluster)
    crews = crews_of(cluster, rank)
    ranks = ranks_in(crews)
    answers = evaluate(ranks if all_ranks or len(crews) > 1 else ranks[:1], text, now=now, seconds=seconds)
    say_problems(cluster)
    finish(answers, as_json=as_json)
    end(cluster, quiet=True)
