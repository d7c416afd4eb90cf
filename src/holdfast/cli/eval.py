"""`holdfast eval`: run code inside a live training, between two of its steps."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.cli.asking import Rank, Seconds
from holdfast.cli.options import AsJson, Targets, all_of


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("eval")(eval_)


def eval_(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[RUN]... CODE", help="Python code; - reads it from standard input.", show_default=False),
    ],
    target: Targets = None,
    now: Annotated[bool, typer.Option("--now", help="At once, in a side thread; tensors only if it hangs or is paused.")] = False,
    seconds: Seconds = 30.0,
    rank: Rank = None,
    all_ranks: Annotated[
        bool, typer.Option("--all", "--all-ranks", help="In every rank; without -t of all live runs here.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run code inside a live training, between two of its steps, and show what it prints and the value of its last line.

    It sees the training's own names, live: the locals and globals of the loop. `model`, `optimizer`, `scheduler`, `train_loader`
    and `trainer` are found where they have other names. One run is asked in its first rank; several runs or servers in every
    rank, each answer under its machine and rank. Ends with 1 if the code raised an error, or if a server did not answer.
    """
    from holdfast.cli.asking import finish
    from holdfast.cli.cluster_words import end, say_problems
    from holdfast.probe.changing import evaluate
    from holdfast.probe.cluster import find
    from holdfast.probe.cluster_ranks import crews_of, ranks_in, refuse_several

    *runs, code = words
    named = all_of(runs, target)
    text = sys.stdin.read() if code == "-" else code
    cluster = find(named, everything=all_ranks and not named, live=True)
    if not all_ranks:
        refuse_several(cluster)
    crews = crews_of(cluster, rank)
    ranks = ranks_in(crews)
    told = evaluate(ranks if all_ranks or len(crews) > 1 else ranks[:1], text, now=now, seconds=seconds)
    say_problems(cluster)
    finish(told, as_json=as_json)
    end(cluster, quiet=True)
