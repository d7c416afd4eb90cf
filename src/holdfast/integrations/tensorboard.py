"""TensorBoard: one event file in the run folder, so that `tensorboard --logdir runs` shows each run by its name."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from holdfast.integrations.tracker import End, Notice, Row, Tracker
from holdfast.signals.run_folder import RunFolder


class TensorBoard(Tracker):
    """Appends to the event file; what a killed sender wrote after its last cursor is cut off again."""

    def __init__(self, run: RunFolder, state: dict[str, Any]) -> None:
        super().__init__(run, state)
        state.setdefault("file", f"events.out.tfevents.{int(time.time())}.{os.uname().nodename}.holdfast")
        self.address = f"tensorboard --logdir {run.path.parent}"
        self._file = (run.path / state["file"]).open("ab")
        self._file.truncate(state.setdefault("size", 0))
        if not state["size"]:
            self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))
            self._flush()

    def metrics(self, rows: Sequence[Row]) -> None:
        """One event for each step."""
        for row in rows:
            values = [Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            self._append(Event(wall_time=row.time, step=row.step, summary=Summary(value=values)))
        self._flush()

    def notice(self, notice: Notice) -> None:
        """A text beside the curves."""
        text = text_pb("holdfast/findings", f"**{notice.severity}** `{notice.code}` {notice.text}")
        self._append(Event(wall_time=notice.time, step=notice.step or 0, summary=text))
        self._flush()

    def finish(self, end: End) -> None:
        """TensorBoard keeps no files: a text names the report."""
        self.notice(replace(end.notice, text=f"{end.notice.text}; report: {end.report}"))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, event: Event) -> None:
        RecordWriter(self._file).write(event.SerializeToString())

    def _flush(self) -> None:
        self._file.flush()
        self.state["size"] = self._file.tell()


KIND = TensorBoard
