"""A model of a sensor array as ONNX gives all heads for any batch; predictions can be written as ROOT."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "trainings"))
from loop_sensors import ARRAY, INVALID, SENSORS, TARGETS, events

from holdfast.train.export import export_onnx
from holdfast.train.sensors.array import read_array, read_targets
from holdfast.train.sensors.exported import Predictions, predictions
from holdfast.train.sensors.model import SensorModel
from holdfast.train.sensors.predictions import writer_of


def described() -> tuple[Any, Any]:
    array: dict[str, Any] = copy.deepcopy(ARRAY)
    for name in ("charge", "time"):
        array["channels"][name] |= {"offset": 1.0, "scale": 2.0}
    targets = [replace(one, size=len(one.branches), offset=5.0, scale=3.0) for one in read_targets(TARGETS, "mse", None)]
    return read_array(array), targets


@pytest.mark.slow
@pytest.mark.parametrize("regresses", [True, False])
def test_the_file_gives_all_heads_for_any_batch(regresses: bool, tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="needs pip install 'holdfast[export]'")
    import onnxruntime

    torch.manual_seed(0)
    array, targets = described()
    targets = targets if regresses else []
    model, columns = SensorModel(array, targets, width=16, depth=2), events(5)
    values = torch.from_numpy(np.stack([columns["charge"], columns["time"]], axis=1))
    assert export_onnx(predictions(model, array, targets, values), tmp_path / "model.onnx") < 1e-5
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    assert [one.name for one in session.get_outputs()] == (["energy", "place"] if regresses else ["filled"])
    for count in (1, 5):
        found = session.run(None, {"values": values[:count].numpy()})
        with torch.no_grad():
            wanted = Predictions(model, targets)(values[:count])
        assert all(np.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in zip(found, wanted, strict=True))


def test_only_invalid_channels_are_filled() -> None:
    array, _ = described()
    model, columns = SensorModel(array, (), width=16, depth=1).eval(), events(8)
    values = torch.from_numpy(np.stack([columns["charge"], columns["time"]], axis=1))
    with torch.no_grad():
        (filled,) = Predictions(model, ())(values)
    valid = values != INVALID
    assert torch.equal(filled[valid], values[valid]) and (filled[~valid] != INVALID).all()


def test_predictions_are_a_tree_that_has_its_name_once_it_is_whole(tmp_path: Path) -> None:
    uproot = pytest.importorskip("uproot", reason="needs pip install 'holdfast[sensors]'")
    values = np.random.default_rng(0).random((100, SENSORS), dtype=np.float32)
    with writer_of("root", tmp_path) as writer:
        writer._most = 4000  # a few rows at a time
        for start in range(0, 100, 10):
            writer.write(event=np.arange(start, start + 10), charge=values[start : start + 10])
        assert not list(tmp_path.glob("*.root"))
    with uproot.open(tmp_path / "rank-0-00000.root") as file:
        tree = file["predictions"]
        assert np.array_equal(tree["charge"].array(library="np"), values) and tree["event"].array(library="np").tolist() == list(
            range(100)
        )
        assert tree["charge"].num_baskets > 3
