"""py-spy: the stacks of one process, read from outside without its help."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from holdfast.environment.py_spy import path_of_py_spy
from holdfast.probe.stacks.frames import Frame, Thread

_LONGEST_LOCAL = 120


@dataclass(frozen=True, slots=True)
class Refused:
    """What py-spy said when it could not read a process; `late` if it did not come back in time."""

    text: str
    late: bool = False


def read_with_spy(pid: int, *, native: bool, locals_: bool, stop: bool = True, seconds: float) -> tuple[Thread, ...] | Refused:
    """Read one process. `stop` holds it for the moment of reading; a process that already stands still must not be."""
    program = path_of_py_spy()
    if program is None:
        return Refused("py-spy is not installed")
    command = [program, "dump", "--json", "--full-filenames", "--pid", str(pid)]
    command += ["--locals"] * locals_ + (["--native"] * native if stop else ["--nonblocking"])
    try:
        done = subprocess.run(command, capture_output=True, timeout=max(seconds, 0.05), check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return Refused(f"py-spy did not answer within {seconds:.1f} s", late=True)
    except OSError as error:
        return Refused(f"py-spy cannot be started: {error.strerror}")
    try:
        return threads_of(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError):
        return Refused(_problem(done.stderr.decode(errors="replace")))


def threads_of(answer: list[dict[str, Any]]) -> tuple[Thread, ...]:
    """What py-spy prints as JSON, as threads; the one that the process began with comes first."""
    threads = [_thread(row) for row in answer]
    return tuple(sorted(threads, key=lambda thread: (not thread.is_main, thread.thread)))


def _thread(row: dict[str, Any]) -> Thread:
    return Thread(
        pid=int(row["pid"]),
        thread=int(row.get("os_thread_id") or row["thread_id"]),
        name=row.get("thread_name") or "",
        holds_gil=bool(row.get("owns_gil")),
        active=bool(row.get("active")),
        frames=tuple(_frame(frame) for frame in row["frames"]),
    )


def _frame(row: dict[str, Any]) -> Frame:
    seen = row.get("locals")
    return Frame(
        func=row["name"],
        file=row["filename"] or "",
        line=int(row.get("line") or 0),
        module=row.get("module"),
        native=row.get("module") is not None,
        locals=None if seen is None else tuple((value["name"], _short(value.get("repr"))) for value in seen),
    )


def _short(text: str | None) -> str:
    line = " ".join((text or "?").split())
    return line if len(line) <= _LONGEST_LOCAL else line[: _LONGEST_LOCAL - 1] + "…"


def _problem(text: str) -> str:
    """The lines of an error that say something: what failed, and its causes."""
    message = [line.strip() for line in text.partition("Stack backtrace:")[0].splitlines()]
    lines = [line.removeprefix("Error: ") for line in message if line and line != "Caused by:"]
    return "; ".join(lines) or "py-spy gave no answer"
