"""Weights & Biases, online or offline as WANDB_MODE says; what is handed over is on disk, and W&B's own process uploads it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import wandb

from holdfast.integrations.tracker import End, Notice, Row, Tracker, command_of, identity_of, project_of
from holdfast.signals.run_folder import RunFolder

_LEVELS = {"critical": wandb.AlertLevel.ERROR, "warning": wandb.AlertLevel.WARN, "info": wandb.AlertLevel.INFO}


class WandB(Tracker):
    """One W&B run for each run, resumed by its id. The x-axis is the training's step; W&B's own step counts the rows."""

    def __init__(self, run: RunFolder, state: dict[str, Any]) -> None:
        super().__init__(run, state)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or project_of(run),
            name=run.name,
            id=identity_of(run),
            resume="allow" if os.environ.get("WANDB_MODE") != "offline" else None,
            dir=os.environ.get("WANDB_DIR") or str(run.path),
            config={"command": command_of(run), "folder": str(run.path)},
            settings=wandb.Settings(console="off", silent=True, x_disable_stats=True, disable_code=True),
        )
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")
        state.setdefault("rows", 0)
        self.address = f"wandb sync {self._run.settings.sync_dir}" if self._run.offline else str(self._run.url)

    def metrics(self, rows: Sequence[Row]) -> None:
        """Rows that a killed sender had handed over already are behind W&B's step, and skipped."""
        for number, row in enumerate(rows, self.state["rows"]):
            if number >= self._run.step:
                self._run.log({"step": row.step, **row.values}, step=number)
        self.state["rows"] += len(rows)

    def notice(self, notice: Notice) -> None:
        """An alert, and a tag."""
        self._run.alert(f"{self._run.name}: {notice.code}", notice.text, level=_LEVELS[notice.severity])
        self._run.tags = tuple(dict.fromkeys((*(self._run.tags or ()), notice.code)))

    def finish(self, end: End) -> None:
        """The settings, the report as an artifact, and how it ended."""
        self._run.config.update(end.settings, allow_val_change=True)
        self._run.summary["end"] = end.notice.text
        if end.report is not None:
            report = wandb.Artifact(f"report-{self._run.id}", type="report")
            report.add_file(str(end.report))
            self._run.log_artifact(report)
        self._run.finish(exit_code=1 if end.notice.severity == "critical" else 0)

    def close(self) -> None:
        """Have W&B write everything down."""
        self._run.finish()


KIND = WandB
