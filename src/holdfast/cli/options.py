"""Options that mean the same on every verb."""

from __future__ import annotations

from typing import Annotated

import typer

Target = Annotated[
    str | None,
    typer.Option(
        "-t",
        "--target",
        metavar="TARGET",
        help="Which run: a process id, a run folder or a run name; the newest run here without it.",
        show_default=False,
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "-t",
        "--target",
        metavar="TARGET",
        help="Which run: a process id, a run folder, a run name, or HOST:PORT of a server; may be given several times. "
        "The newest run here without it.",
        show_default=False,
    ),
]
AllRuns = Annotated[bool, typer.Option("--all", help="All live runs of this machine together.")]
AsJson = Annotated[bool, typer.Option("--json", help="Answer as JSON.")]
