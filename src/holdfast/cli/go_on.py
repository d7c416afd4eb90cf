"""`holdfast continue`: have a training go on that was told to pause."""

from __future__ import annotations

from typing import Any

import typer

from holdfast.cli.options import AsJson, RunNames, Targets, all_of


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("continue")(go_on)


def go_on(runs: RunNames = None, target: Targets = None, as_json: AsJson = False) -> None:
    """Have a training go on that waits because of `holdfast pause`."""
    from holdfast.cli.asking import change_all, finish

    finish(change_all(all_of(runs, target), {"do": "continue"}), as_json=as_json, words=_words)


def _words(answer: dict[str, Any]) -> str:
    return f"continues with step {answer.get('step')}"
