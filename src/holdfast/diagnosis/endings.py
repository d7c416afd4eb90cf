"""Why a command failed, from its exit code, the end of its log and the kernel's counters: one finding. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.detectors.finding import Finding
from holdfast.diagnosis.error_search import Answer, Match, unknown_comes_first
from holdfast.diagnosis.known_texts import ERROR, FOLLOWS

_RAISED = re.compile(r"^(?:\[[^\]]{1,60}\]:?\s*)?((?:[A-Za-z_]\w*\.)*[A-Z]\w*)(?::|\s*$)")
_KILL = re.compile(r"SIGKILL|[Ss]ignal 9|exitcode\W+-9|[Kk]illed")
_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
_MANY_FILES = 0.9  # of the limit
_LAST_WORDS = 200  # lines: an error, its traceback, and the frames that compiled code prints before it gives up


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended; `search` is what was recognised in its log, `files` the open files and their limit."""

    exit_code: int
    step: int | None = None
    search: Answer = field(default_factory=Answer)
    killed_for_memory: int | None = None  # by the kernel; None if unknown
    files: tuple[int, int] | None = None
    stack: str | None = None  # what was written when it crashed

    @property
    def number(self) -> signal.Signals | None:
        """The signal that ended it, if one did."""
        try:
            return signal.Signals(self.exit_code - 128) if self.exit_code > 128 else None
        except ValueError:
            return None


def error_of(ended: Ended) -> tuple[str | None, str | None]:
    """The class of the error that ended it, and the line that tells most: a kernel prints its own before an error is raised."""
    lines = [one.line for one in ended.search.matches if one.text.kind >= FOLLOWS]
    unknown = ended.search.unknown[0] if ended.search.unknown is not None else None
    line = unknown if unknown is not None and unknown_comes_first(ended.search) else next(iter(lines), unknown)
    raised = (match for one in (line, *lines) if one and (match := _RAISED.match(one)))
    return next((match[1].rpartition(".")[2] for match in raised), None), line


def finding_of(ended: Ended, **more: Any) -> Finding:
    """The finding of an end: what is said in the log, what the kernel counted, or the signal."""
    name, line = error_of(ended)
    evidence: dict[str, Any] = {"exit_code": ended.exit_code, "ended": words_of(ended), "error": line, **more}
    if ended.killed_for_memory:
        evidence["killed_for_memory"] = ended.killed_for_memory
    if ended.files is not None and ended.files[0] > _MANY_FILES * ended.files[1]:
        evidence["open_files"], evidence["open_files_limit"] = ended.files
    code = _code(ended, name)
    evidence["known_text"] = next((match.text.name for match in ended.search.matches if match.text.page == code), None)
    shown = {key: value for key, value in evidence.items() if value is not None}
    return Finding(code, step=ended.step or 0, severity="critical", evidence=shown)


def _code(ended: Ended, name: str | None) -> str:
    pages = [match.text.page for match in ended.search.matches if match.text.kind >= FOLLOWS and not _disproved(match, ended)]
    if ended.killed_for_memory and (ended.number == signal.SIGKILL or "loader-stall" in pages or "host-out-of-memory" in pages):
        return "host-out-of-memory"
    if ended.number == signal.SIGABRT and (code := _error_before_abort(ended.search)) is not None:
        return code
    if ended.number in _CRASHES or ended.number == signal.SIGKILL:
        return "process-died"
    if pages and not unknown_comes_first(ended.search):
        return pages[0]
    return "process-died" if ended.number is not None or name is None else "script-error"


def _error_before_abort(answer: Answer) -> str | None:
    """The error that compiled code gave up over: after one of a kernel, freeing memory of the card ends in an abort."""
    first = next(iter(answer.matches), None)
    if first is None or first.text.kind != ERROR or first.number <= answer.lines - _LAST_WORDS:
        return None
    return first.text.page


def _disproved(match: Match, ended: Ended) -> bool:
    """A launcher that reports SIGKILL takes it for a kill for memory; the kernel knows better."""
    return match.text.page == "host-out-of-memory" and ended.killed_for_memory == 0 and bool(_KILL.search(match.line))


def words_of(ended: Ended) -> str:
    """How it ended, in words."""
    if ended.killed_for_memory and ended.number == signal.SIGKILL:
        return "killed by the kernel's OOM killer"
    if ended.number is not None:
        if ended.number == signal.SIGKILL:
            return "killed by SIGKILL; sender unknown (often the OOM killer)"
        return f"ended by {'a segmentation fault' if ended.number == signal.SIGSEGV else ended.number.name}"
    name, _ = error_of(ended)
    return f"ended with {name}" if name else f"exited with code {ended.exit_code}"


def trend(sizes: Mapping[str, list[tuple[float, float]]]) -> list[dict[str, Any]]:
    """The memory of each process, from (time, bytes): first, largest and last, the largest process first."""
    rows = [
        {
            "process": name,
            "first": int(points[0][1]),
            "largest": int(max(size for _, size in points)),
            "last": int(points[-1][1]),
            "seconds": round(points[-1][0] - points[0][0], 1),
        }
        for name, points in sizes.items()
        if points
    ]
    return sorted(rows, key=lambda row: -row["largest"])
