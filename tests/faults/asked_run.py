"""A live run that tests ask: started once, and its commands as a user types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast_run import Done, typed, wait_until

from holdfast.probe.changing import RankAnswer, change, evaluate
from holdfast.probe.control_client import listening
from holdfast.signals.run_folder import RunFolder


class AskedRun:
    """One run, and how to ask it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.path = folder, folder / "runs" / name

    @property
    def run(self) -> RunFolder:
        return RunFolder.open(self.path)

    def wait(self, ranks: int = 1, seconds: float = 600.0) -> None:
        """Wait until so many ranks can be asked."""
        wait_until(lambda: (self.path / "run.json").exists() and len(listening(self.run)) >= ranks, seconds)

    def eval(self, code: str, *, now: bool = False, seconds: float = 30.0, rank: int = 0) -> dict[str, Any]:
        (told,) = evaluate([one for one in listening(self.run) if one.rank == rank], code, now=now, seconds=seconds)
        return told.answer

    def value(self, code: str, **how: Any) -> str | None:
        answer = self.eval(code, **how)
        assert answer["ok"], answer["error"]
        value: str | None = answer["value"]
        return value

    def change(self, do: str, **request: Any) -> RankAnswer:
        told = change(self.run, {"do": do, **request})
        assert len({repr(one.answer.get("value")) for one in told}) == 1, told
        return told[0]

    def journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.path / "journal.jsonl").read_text().splitlines()]

    def type(self, *words: str, stdin: str = "") -> Done:
        """`holdfast WORDS -t RUN`."""
        return typed(words[0], "-t", str(self.path), *words[1:], stdin=stdin)
