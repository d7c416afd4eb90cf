"""What a tracker takes of a run: metrics of steps, notices for people, and how it ended."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.probe.metric_rows import Row as Row
from holdfast.signals.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that people want to be told: a finding, a restart, the end."""

    event: str
    severity: str
    code: str
    step: int | None
    time: float
    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run: how it ended, its report and its settings."""

    notice: Notice
    report: Path | None = None
    settings: dict[str, float | str] = field(default_factory=dict)


class Tracker:
    """A connection to a tracker. When a call returns, the tracker has it; what a call raises is tried again on a new connection.

    Making one makes the tracker's run, or finds it again. `state` is the tracker's own, and kept beside what was sent.
    """

    takes_metrics = True
    address = ""  # where people find the run

    def __init__(self, run: RunFolder, state: dict[str, Any]) -> None:
        self.run, self.state = run, state

    def metrics(self, rows: Sequence[Row]) -> None:
        """Take metrics."""

    def notice(self, notice: Notice) -> None:
        """Take a finding or a restart."""

    def finish(self, end: End) -> None:
        """The run has ended: take report and settings, and close the tracker's run."""

    def close(self) -> None:
        """Let go of the connection; the tracker's run stays open."""


def project_of(run: RunFolder) -> str:
    """What a tracker calls the project, unless its own variable names one: the folder that the run was started in."""
    return Path(str(run.info().get("cwd") or run.path.parent.parent)).name or "holdfast"


def identity_of(run: RunFolder) -> str:
    """A name for this run that no other has, and that it keeps."""
    info = run.info()
    return hashlib.sha256(f"{info.get('host')} {run.path} {info.get('started')}".encode()).hexdigest()[:12]


def command_of(run: RunFolder) -> str:
    """The command that was started."""
    return " ".join(map(str, run.info().get("command") or ()))
