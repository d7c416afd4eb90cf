"""TensorBoard's event files, written by PyTorch and by hand in the newer form."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from holdfast.errors import LogUnreadable
from holdfast.logs.open import open_log
from holdfast.logs.search import find_logs

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.util.tensor_util import make_tensor_proto
from torch.utils.tensorboard import SummaryWriter


def write(folder: Path, scalars: dict[str, list[float]], *, first: int = 0, suffix: str = "") -> None:
    with SummaryWriter(str(folder), filename_suffix=suffix) as writer:
        for name, values in scalars.items():
            for step, value in enumerate(values, first):
                writer.add_scalar(name, value, step)


def test_the_scalars_of_pytorchs_writer_are_those_that_tensorboard_shows(tmp_path: Path) -> None:
    losses = [1.0, 0.5, float("nan"), 0.25]
    with SummaryWriter(str(tmp_path)) as writer:
        for step, loss in enumerate(losses):
            writer.add_scalar("Loss/train", loss, 10 * step)
            writer.add_scalar("Accuracy/val", 1 - loss, 10 * step)
            writer.add_histogram("weights", np.arange(9.0), 10 * step)
            writer.add_image("input", np.zeros((3, 400, 400), np.uint8), 10 * step)
    (curves,) = open_log(tmp_path)
    shown = EventAccumulator(str(tmp_path)).Reload().Scalars("Loss/train")
    assert curves.train_loss is not None and curves.source == "tensorboard"
    assert list(curves.train_loss.steps) == [point.step for point in shown]
    np.testing.assert_array_equal(curves.train_loss.values, [point.value for point in shown])
    assert [curve.name for curve in curves.curves] == ["Loss/train", "Accuracy/val"]
    assert [metric.name for metric in curves.metrics] == ["Accuracy/val"]


def test_scalars_in_the_newer_form_of_tensors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1700000000.host.v2"
    with path.open("wb") as file:
        for step, loss in enumerate((0.9, 0.8, 0.7)):
            value = Summary.Value(tag="epoch_loss", tensor=make_tensor_proto(loss, dtype="float32"))
            value.metadata.plugin_data.plugin_name = "scalars"
            record = Event(step=step, summary=Summary(value=[value])).SerializeToString()
            file.write(struct.pack("<QI", len(record), 0) + record + b"\0" * 4)
    (curves,) = open_log(path)
    assert curves.train_loss is not None
    np.testing.assert_allclose(curves.train_loss.values, [0.9, 0.8, 0.7], rtol=1e-6)


def test_a_file_that_is_still_being_written_is_read_up_to_its_last_whole_record(tmp_path: Path) -> None:
    write(tmp_path, {"loss": [3.0, 2.0, 1.0]})
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    (curves,) = open_log(file)
    assert curves.train_loss is not None and list(curves.train_loss.values) == [3.0, 2.0]


def test_a_later_file_that_goes_on_is_the_same_run_and_one_that_begins_again_is_another(tmp_path: Path) -> None:
    for number, (first, values) in enumerate(((0, [9.0, 8.0, 7.0, 6.0]), (2, [2.0, 1.0]), (0, [5.0, 4.0]))):
        write(tmp_path, {"loss": values}, first=first)
        for file in tmp_path.glob("events.out.tfevents.*[0-9]"):
            file.rename(tmp_path / f"events.out.tfevents.{1700000000 + number}.host.x")
    runs = open_log(tmp_path)
    assert [list(run.train_loss.values) for run in runs if run.train_loss is not None] == [[9, 8, 2, 1], [5, 4]]


def test_the_folders_of_keras_for_training_and_validation_are_one_run(tmp_path: Path) -> None:
    write(tmp_path / "logs" / "train", {"epoch_loss": [1.0, 0.9, 0.8]})
    write(tmp_path / "logs" / "validation", {"epoch_loss": [1.1, 1.0, 0.9]})
    assert list(find_logs(tmp_path)) == [tmp_path / "logs"]
    (curves,) = open_log(tmp_path / "logs")
    assert curves.train_loss is not None and curves.val_loss is not None
    assert curves.val_loss.values[0] == pytest.approx(1.1)


def test_an_epoch_that_was_written_as_a_scalar_is_the_epoch_of_the_others(tmp_path: Path) -> None:
    write(tmp_path, {"train_loss": [1.0, 0.9, 0.8, 0.7], "epoch": [0.0, 0.0, 1.0, 1.0]})
    (curves,) = open_log(tmp_path)
    assert curves.train_loss is not None and curves.train_loss.epochs is not None
    assert list(curves.train_loss.epochs) == [0, 0, 1, 1] and len(curves.curves) == 1


def test_event_files_beside_a_table_of_the_same_run_count_once(tmp_path: Path) -> None:
    write(tmp_path / "version_0", {"train_loss": [1.0, 0.9]})
    (tmp_path / "version_0" / "metrics.csv").write_text("step,train_loss\n0,1.0\n1,0.9\n")
    write(tmp_path / "version_1", {"train_loss": [1.0, 0.9]})
    assert list(find_logs(tmp_path)) == [tmp_path / "version_0" / "metrics.csv", tmp_path / "version_1"]


def test_runs_below_a_folder_with_events_and_a_run_that_is_named_train_are_found(tmp_path: Path) -> None:
    write(tmp_path / "logs", {"loss": [1.0, 0.9]})
    write(tmp_path / "logs" / "second", {"loss": [1.0, 0.9]})
    write(tmp_path / "detect" / "train", {"loss": [1.0, 0.9]})
    write(tmp_path / "detect" / "val", {"loss": [1.0, 0.9]})
    (tmp_path / "detect" / "train" / "results.csv").write_text("epoch,train/box_loss\n0,1.0\n1,0.9\n")
    found = [path.relative_to(tmp_path).as_posix() for path in find_logs(tmp_path)]
    assert found == ["detect/train/results.csv", "detect/val", "logs", "logs/second"]


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"loss": [1.0, 0.9]})
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(LogUnreadable) as caught:
        open_log(tmp_path)
    assert "pip install tensorboard" in caught.value.fix
