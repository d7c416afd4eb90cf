"""`holdfast continue`: resume a training that was paused."""

from __future__ import annotations

from typing import Any

import typer

from holdfast.cli.options import AsJson, RunNames, Targets, all_of


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("continue")(continue_)


def continue_(runs: RunNames = None, target: Targets = None, as_json: AsJson = False) -> None:
    """Resume a training that `holdfast pause` stopped."""
    from holdfast.cli.live_requests import change_all, finish

    finish(change_all(all_of(runs, target), {"do": "continue"}), as_json=as_json, sentence=_sentence)


def _sentence(answer: dict[str, Any]) -> str:
    return f"resumed at step {answer.get('step')}"
