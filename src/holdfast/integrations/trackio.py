"""Trackio: its local database, or the Space that TRACKIO_SPACE_ID names."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import trackio

from holdfast.integrations.tracker import End, Notice, Row, Tracker, command_of, project_of
from holdfast.signals.run_folder import RunFolder

_LEVELS = {"critical": trackio.AlertLevel.ERROR, "warning": trackio.AlertLevel.WARN, "info": trackio.AlertLevel.INFO}


class Trackio(Tracker):
    """One Trackio run for each run, resumed by its name."""

    def __init__(self, run: RunFolder, state: dict[str, Any]) -> None:
        super().__init__(run, state)
        project = os.environ.get("TRACKIO_PROJECT") or project_of(run)
        config = {"command": command_of(run), "folder": str(run.path)}
        self._run = trackio.init(
            project, run.name, resume="allow", config=config, embed=False, auto_log_gpu=False, auto_log_cpu=False
        )
        self.address = f"trackio show --project {project}"

    def metrics(self, rows: Sequence[Row]) -> None:
        """One after the other; Trackio sends them in a thread."""
        for row in rows:
            self._run.log(dict(row.values), step=row.step)

    def notice(self, notice: Notice) -> None:
        """An alert."""
        self._run.alert(notice.code, notice.text, level=_LEVELS[notice.severity])

    def finish(self, end: End) -> None:
        """How it ended, and the report as an artifact."""
        self.notice(end.notice)
        if end.report is not None:
            report = trackio.Artifact(f"report-{self._run.name}", type="report")
            report.add_file(str(end.report))
            self._run.log_artifact(report)

    def close(self) -> None:
        """Have Trackio write everything down."""
        trackio.finish()


KIND = Trackio
