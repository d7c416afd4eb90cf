"""`holdfast sync`: what a tracker has not got yet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.integrations.sending import Cursor
from holdfast.signals.run_folder import RunFolder


def test_a_recorded_run_is_sent_once_and_then_nothing_is_left(training: Callable[..., Any], holdfast: Callable[..., Any]) -> None:
    training("digits", steps=30, live=False)
    first = holdfast("sync", "digits", "--to", "tensorboard")
    assert first.code == 0 and first.out.startswith(
        "tensorboard: 180 values, 0 findings and the report sent (tensorboard --logdir "
    )
    assert "nothing left to send" in holdfast("sync", "digits").out, "the tracker is known from the first time"
    answer = json.loads(holdfast("sync", "--json").out)
    assert answer["run"] == "digits" and answer["sent"][0]["values"] == 0


def test_what_cannot_be_sent_says_why_and_what_to_do(training: Callable[..., Any], holdfast: Callable[..., Any]) -> None:
    training("digits", live=False)
    none = holdfast("sync", "digits")
    assert none.code == 2 and "was started without a tracker" in none.err and "--to tensorboard" in none.err
    unknown = holdfast("sync", "digits", "--to", "mlfow")
    assert unknown.code == 2 and "fix: --to mlflow" in unknown.err
    training("live")
    with Cursor(RunFolder.open(Path("runs/live")), "tensorboard").held():
        busy = holdfast("sync", "live", "--to", "tensorboard")
    assert busy.code == 2 and "by another process" in busy.err
