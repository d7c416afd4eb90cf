"""Starts one of the programs under `children`, with a limit on its time and its memory, and reads what it tells.

A child writes lines of JSON, one after each stage, so that of one that hangs or dies the last stage is known. It has a
process group of its own, which is ended with it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

DONE, FAILED, TIMED_OUT, TOO_LARGE = "done", "failed", "timed out", "too large"
_FOLDER = Path(__file__).parent / "children"
_POLL, _KEPT = 0.05, 20_000
_alive: set[int] = set()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended. `facts` is all it told, later lines over earlier ones; `stage` the last one it finished."""

    how: str
    code: int
    facts: dict[str, Any] = field(default_factory=dict)
    stage: str = ""
    errors: str = ""
    seconds: float = 0.0
    peak: int = 0  # bytes of the child and the processes it started

    @property
    def last_output(self) -> str:
        """The last non-empty line on stderr; of a traceback its error."""
        lines = [line.strip() for line in self.errors.splitlines() if line.strip()]
        return lines[-1] if lines else _by_signal(self.code)


class Child:
    """A child that runs."""

    def __init__(self, script: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        self._out, self._err = (tempfile.TemporaryFile("w+b") for _ in range(2))  # noqa: SIM115 - read and closed at the end
        self._begun = time.monotonic()
        self._peak = 0
        self._process = subprocess.Popen(
            [sys.executable, str(_FOLDER / script), *arguments],
            stdin=subprocess.DEVNULL, stdout=self._out, stderr=self._err,
            env={**os.environ, **(environment or {})}, start_new_session=True,
        )  # fmt: skip
        if not _alive:
            atexit.register(_end_all)
        _alive.add(self._process.pid)

    def wait(self, seconds: float, *, memory: int | None = None) -> Ended:
        """Wait for its end; past `seconds` or `memory` it is ended."""
        how, look = DONE, 0
        while self._process.poll() is None:
            if time.monotonic() - self._begun > seconds:
                how = TIMED_OUT
            elif look % 4 == 0:  # adding up the memory of a tree costs more than a look at the clock
                self._peak = max(self._peak, _resident(self._process.pid))
                how = TOO_LARGE if memory is not None and self._peak > memory else how
            if how != DONE:
                self.kill()
                break
            look += 1
            time.sleep(_POLL)
        return self._ended(how)

    def kill(self) -> None:
        """End it and all it started."""
        _end(self._process.pid)
        self._process.wait()

    def _ended(self, how: str) -> Ended:
        self.kill()  # what it left running
        _alive.discard(self._process.pid)
        code = self._process.returncode
        rows = [row for line in _text(self._out).splitlines() if (row := _row(line)) is not None]
        facts = {key: value for row in rows for key, value in row.items() if key != "stage"}
        stage = str(rows[-1]["stage"]) if rows else ""
        how = FAILED if how == DONE and code != 0 else how
        return Ended(how, code, facts, stage, _text(self._err), time.monotonic() - self._begun, self._peak)


def run_child(
    script: str, *arguments: str, seconds: float, memory: int | None = None, environment: Mapping[str, str] | None = None
) -> Ended:
    """Start a child and wait for its end."""
    return Child(script, *arguments, environment=environment).wait(seconds, memory=memory)


def _row(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    with contextlib.suppress(ValueError):
        row = json.loads(line)
        return row if isinstance(row, dict) and "stage" in row else None
    return None


def _text(file: IO[bytes]) -> str:
    with file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _KEPT))
        return file.read().decode(errors="replace")


def _resident(pid: int) -> int:
    import psutil

    total = 0
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        for member in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                total += member.memory_info().rss
    return total


def _end(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _end_all() -> None:
    for group in list(_alive):
        _end(group)


def _by_signal(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    with contextlib.suppress(ValueError):
        return f"it was ended by {signal.Signals(-code).name}"
    return f"it was ended by signal {-code}"
