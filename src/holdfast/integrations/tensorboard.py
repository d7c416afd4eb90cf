"""TensorBoard: one event file in the run folder, so that `tensorboard --logdir runs` shows each run by its name."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from holdfast.integrations.tracker import End, Notice, Row, Tracker
from holdfast.signals.run_folder import RunFolder

_TEXT = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))


class TensorBoard(Tracker):
    """Appends to the event file; what a killed sender wrote after its last cursor is cut off again."""

    def __init__(self, run: RunFolder, state: dict[str, Any]) -> None:
        super().__init__(run, state)
        state.setdefault("file", f"events.out.tfevents.{int(time.time())}.{os.uname().nodename}.holdfast")
        self.address = f"tensorboard --logdir {run.path.parent}"
        self._file = (run.path / state["file"]).open("ab")
        self._file.truncate(state.setdefault("size", 0))
        if not state["size"]:
            self._write([Event(wall_time=time.time(), file_version="brain.Event:2")])

    def metrics(self, rows: Sequence[Row]) -> None:
        """One event for each step."""
        self._write(
            [
                Event(
                    wall_time=row.time,
                    step=row.step,
                    summary=Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]),
                )
                for row in rows
            ]
        )

    def notice(self, notice: Notice) -> None:
        """A text beside the curves."""
        tensor = TensorProto(
            dtype=DT_STRING,
            string_val=[f"**{notice.severity}** `{notice.code}` {notice.text}".encode()],
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]),
        )
        value = Summary.Value(tag="holdfast/findings", metadata=_TEXT, tensor=tensor)
        self._write([Event(wall_time=notice.time, step=notice.step or 0, summary=Summary(value=[value]))])

    def finish(self, end: End) -> None:
        """TensorBoard keeps no files: a text names the report."""
        self.notice(replace(end.notice, text=f"{end.notice.text}; report: {end.report}"))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, events: Sequence[Event]) -> None:
        writer = RecordWriter(self._file)
        for event in events:
            writer.write(event.SerializeToString())
        writer.flush()
        self.state["size"] = self._file.tell()


KIND = TensorBoard
