"""What TensorBoard's own reader finds in the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from holdfast.integrations.sending import Cursor, Sender
from holdfast.integrations.tensorboard import TensorBoard


def send(recorded: Any) -> Sender:
    sender = Sender(recorded.run, TensorBoard, Cursor(recorded.run, "tensorboard"))
    sender.send()
    return sender


def read(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def test_tensorboard_reads_curves_evaluations_and_findings(recorded: Any) -> None:
    for step in range(30):
        recorded.step(step)
    recorded.log(29, "accuracy", 0.75)
    recorded.find("hang", step=13, say="worker 3 waits for a file")
    recorded.end()
    send(recorded).finish()
    events = read(recorded.run.path)
    losses = events.Scalars("train/loss")
    assert [one.step for one in losses] == list(range(30))
    assert abs(losses[9].value - 0.1) < 1e-6 and abs(losses[9].wall_time - 1_700_000_000.9) < 1e-3
    assert events.Scalars("val/accuracy")[0].value == 0.75
    texts = [bytes(one.tensor_proto.string_val[0]).decode() for one in events.Tensors("holdfast/findings")]
    assert "worker 3 waits for a file" in texts[0] and "report.html" in texts[1]


def test_what_a_killed_sender_wrote_behind_its_cursor_is_not_there_twice(recorded: Any) -> None:
    for step in range(10):
        recorded.step(step)
    send(recorded)
    before = (recorded.run.path / "sent" / "tensorboard.json").read_text()
    for step in range(10, 20):
        recorded.step(step)
    send(recorded)
    (recorded.run.path / "sent" / "tensorboard.json").write_text(before)  # as if it was killed before it wrote its cursor
    recorded.end()
    send(recorded).finish()
    assert [one.step for one in read(recorded.run.path).Scalars("train/loss")] == list(range(20))
