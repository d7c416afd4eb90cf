"""How a verb for several machines reports which did not answer."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from holdfast.probe.cluster import Cluster


def say_notes(notes: Iterable[str]) -> None:
    """What a person should know about an answer, each thing once."""
    for note in dict.fromkeys(notes):
        print(note, file=sys.stderr)


def say_problems(cluster: Cluster) -> None:
    """Name those that did not answer."""
    say_notes(cluster.notes)
    say_notes(f"not in the answer: {problem.problem}\n  fix: {problem.fix}" for problem in cluster.problems.values())


def end(cluster: Cluster, code: int = 0, *, quiet: bool = False) -> None:
    """Name those that did not answer, unless that was done, and end with 1 if there are any."""
    if not quiet:
        say_problems(cluster)
    if cluster.problems or code:
        raise typer.Exit(code or 1)
