"""`holdfast checkpoints VERB`: look at checkpoints, anybody's, without running what is inside. One file for each verb."""

from __future__ import annotations

import typer

from holdfast.cli.checkpoints import choose, compare, inspect, list, verify


def register(app: typer.Typer) -> None:
    """Add the group and its verbs."""
    group = typer.Typer(no_args_is_help=True, help="List, verify, inspect and compare checkpoints; choose one to resume from.")
    for verb in (list, verify, inspect, compare, choose):
        verb.register(group)
    app.add_typer(group, name="checkpoints")
