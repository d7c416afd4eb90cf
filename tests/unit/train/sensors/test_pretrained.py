"""A run starts from another one's encoder where array and normalisation are the same, and says what it took."""

from __future__ import annotations

import copy
import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "trainings"))
from loop_sensors import ARRAY, events, settings_of

from holdfast.errors import UsageError
from holdfast.train.arguments import parse
from holdfast.train.devices import Place
from holdfast.train.loop import Training
from holdfast.train.sensors.exported import load_model
from holdfast.train.sensors.pretrained import same_preprocessing
from holdfast.train.sensors.task import SensorsTask

HERE = Place(torch.device("cpu"))


@pytest.fixture(scope="module")
def mae(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short masked auto-encoder."""
    folder = tmp_path_factory.mktemp("sensors")
    np.savez(folder / "events.npz", **events(160))
    train(folder, objective="mae", name="mae", epochs=1)
    return folder / "mae"


def train(folder: Path, **settings: Any) -> None:
    chosen = settings_of({"data": str(folder / "events.npz"), "project": str(folder), "policy": "observe", **settings})
    task = SensorsTask(chosen, HERE)
    Training(task, task.settings, HERE).fit()


def test_it_leaves_metrics_pictures_and_a_model(mae: Path) -> None:
    (row,) = csv.DictReader((mae / "metrics.csv").open())
    assert float(row["actual_mask_ratio"]) == pytest.approx(0.6, abs=0.02) and float(row["grad_norm_max"]) > 0
    for name in ("saliency", "reconstructions-beside-truth", "worst-events"):
        assert list((mae / name).glob("*.png"))
    page = (mae / "report.html").read_text()
    assert all(title in page for title in ("Saliency by face", "Reconstructions beside truth", "Worst events"))
    model, array, targets = load_model(mae / "model.pt")
    assert (array.sensors, targets) == (35, ()) and "filled" in model.heads


def test_regression_takes_the_encoder_and_lists_the_rest(mae: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"objective": "regress", "weights": str(mae), "save_predictions": "parquet", "save_interval": 1, "epochs": 1}
    train(mae.parent, name="regress", **settings)
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("holdfast: weights:"))
    assert "loaded encoder (" in line and "not loaded heads.filled" in line
    assert "new heads.energy (4 tensors), heads.place" in line
    import pyarrow.parquet as pq

    for name in ("epoch-0001", "best"):
        table = pq.read_table(mae.parent / "regress" / "predictions" / name)
        assert table.column_names == ["event", "energy", "energy_predicted", "place", "place_predicted"]
        assert sorted(table["event"].to_pylist()) == list(range(16))


def test_another_objective_starts_from_the_weights_and_the_same_one_resumes(mae: Path, tmp_path: Path) -> None:
    config = tmp_path / "sensors.yaml"
    settings_of({"data": str(mae.parent / "events.npz")}).write(config)
    words = ["sensors", "--config", str(config), "--resume-from", str(mae)]
    other, same = parse([*words, "--task", "regress"]), parse([*words, "--task", "mae"])
    assert (other.settings.weights, other.resume) == (str(mae), None)
    assert (same.settings.weights, same.resume) == ("none", mae)
    assert same.settings.array["channels"]["time"]["scale"] is not None, "the normalisation is that of the run"
    with pytest.raises(UsageError, match="transform sqrt there, none here"):
        parse([*words, "--task", "mae", "--array", json.dumps({**ARRAY, "channels": {"charge": {}, "time": {"scale": 9}}})])


def test_the_normalisation_of_the_run_is_taken_where_none_is_given(mae: Path) -> None:
    channels = same_preprocessing(settings_of({"data": str(mae.parent / "events.npz"), "weights": str(mae)}))
    assert channels is not None and all(one.offset is not None and one.scale is not None for one in channels)


def _scale(array: dict[str, Any]) -> None:
    array["channels"]["time"] = {"scale": 7.0}


def _transform(array: dict[str, Any]) -> None:
    array["channels"]["charge"] = {"transform": "log1p"}


def _invalid(array: dict[str, Any]) -> None:
    array["invalid"] = -2


def _shape(array: dict[str, Any]) -> None:
    array["faces"]["wall"]["shape"] = [5, 4]


def _place(array: dict[str, Any]) -> None:
    array["faces"]["rest"] = {"kind": "set", "index": [33, 32, 34]}


def _kind(array: dict[str, Any]) -> None:
    array["faces"]["top"]["kind"] = "grid"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_scale, "channel time is normalised differently in {}: scale 0.2… there, 7 here"),
        (_transform, "transform sqrt there, log1p here"),
        (_invalid, "invalid -1 there, -2 here"),
        (_shape, "another array: face wall: grid 4×5 there, face wall: grid 5×4 here"),
        (_place, "face rest has sensor 32 at [0] there, face rest has sensor 33 at [0] here"),
        (_kind, "face top: hex 3×4 there, face top: grid 3×4 here"),
    ],
)
def test_what_differs_is_refused_with_both_values(change: Callable[[dict[str, Any]], None], words: str, mae: Path) -> None:
    array = copy.deepcopy(ARRAY)
    change(array)
    with pytest.raises(UsageError) as caught:
        same_preprocessing(settings_of({"data": str(mae.parent / "events.npz"), "weights": str(mae), "array": array}))
    for part in words.format(mae).split("…"):
        assert part in caught.value.problem


def test_another_width_is_refused(mae: Path) -> None:
    with pytest.raises(UsageError, match="width 16, this run has 32"):
        same_preprocessing(settings_of({"data": str(mae.parent / "events.npz"), "weights": str(mae), "width": 32}))


def test_a_beta_that_does_not_fit_is_printed_once(mae: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(mae.parent, name="beta", targets={"energy": {"loss_beta": 500.0}}, epochs=2)
    printed = [line for line in capsys.readouterr().out.splitlines() if "loss_beta is 500" in line]
    assert len(printed) == 1 and printed[0].startswith("holdfast: warning: energy: ")
