"""What is told to commands and addresses, and when it is given up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import CannotSend
from holdfast.integrations.notify import Notify, shown
from holdfast.integrations.sending import Cursor, Sender


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a command writes what it is told."""
    file = tmp_path / "told.jsonl"
    monkeypatch.setenv("HOLDFAST_NOTIFY", f'cat >> {file}; echo " $HOLDFAST_EVENT_TEXT" >> {file}')
    Notify.tries.clear()
    return file


def sender(recorded: Any) -> Sender:
    return Sender(recorded.run, Notify, Cursor(recorded.run, "notify"))


def events(told: Path) -> list[tuple[str, str]]:
    lines = [line.partition("} ") for line in told.read_text().splitlines()]
    assert all(json.loads(event + "}")["text"] == text for event, _, text in lines), "the variables say the same"
    return [(row["event"], row["code"]) for row in (json.loads(event + "}") for event, *_ in lines)]


def test_critical_findings_once_an_attempt_then_restart_and_end(recorded: Any, told: Path) -> None:
    recorded.step(0)
    for step in (3, 4, 5):
        recorded.find("non-finite-loss", step=step)
    recorded.find("slow-loading", "warning")
    recorded.run.journal.write("action", action="restart", state="done", because="hang", step=5, detail="from last.pt")
    recorded.find("non-finite-loss", step=9)
    recorded.end(137)
    last = sender(recorded)
    last.send()
    last.finish()
    again = sender(recorded)
    again.send()
    again.finish()
    assert events(told) == [
        ("finding", "non-finite-loss"),
        ("restart", "hang"),
        ("finding", "non-finite-loss"),
        ("end", "killed (SIGKILL)"),
    ]


def test_one_that_fails_is_tried_three_times_and_the_others_are_told_once(
    recorded: Any, told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = f"cat >> {told}; echo ' ' >> {told}"
    monkeypatch.setenv("HOLDFAST_NOTIFY", f"{good}\necho no such room >&2; exit 3")
    recorded.find("hang")
    for _ in range(3):
        with pytest.raises(CannotSend, match="echo: exit 3: no such room"):
            sender(recorded).send()
    sender(recorded).send()
    assert len(told.read_text().splitlines()) == 1


def test_an_address_is_shown_without_its_secrets() -> None:
    assert shown("https://me:word@hooks.example.org/services/T0/secret?key=1") == "https://hooks.example.org/…"
