"""The model sees valid channels that are not hidden, and nothing else; hexagons have six neighbours."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[3] / "trainings"))
from loop_sensors import ARRAY, INVALID, SENSORS, events

from holdfast.train.sensors.array import Face, SensorArray, Target, read_array
from holdfast.train.sensors.losses import fill_loss, hidden_channels
from holdfast.train.sensors.model import FILLED, Convolution, Normalise, SensorModel, axial

TARGETS = (Target("energy", ("energy",), "mse", None, size=1), Target("place", ("x", "y"), "l1", None, size=2))


def array_of(**channel: Any) -> SensorArray:
    described: dict[str, Any] = copy.deepcopy(ARRAY)
    for name in ("charge", "time"):
        described["channels"][name] |= {"offset": 2.0, "scale": 3.0, **channel}
    return read_array(described)


@pytest.fixture
def values() -> torch.Tensor:
    columns = events(6)
    return torch.from_numpy(np.stack([columns["charge"], columns["time"]], axis=1))


def model_of(*targets: Target) -> SensorModel:
    torch.manual_seed(0)
    return SensorModel(array_of(), targets, width=16, depth=1).eval()


def test_heads_are_those_of_the_objective(values: torch.Tensor) -> None:
    outputs = model_of(*TARGETS)(values)
    assert {name: tuple(one.shape) for name, one in outputs.items()} == {"energy": (6, 1), "place": (6, 2)}
    filled = model_of()(values)
    assert filled[FILLED].shape == (6, 2, SENSORS)


@pytest.mark.parametrize("sensor", [0, 19, 20, 31, 34], ids=["grid", "grid end", "hex", "hex end", "set"])
def test_a_hidden_channel_does_not_reach_the_model_and_a_seen_one_does(values: torch.Tensor, sensor: int) -> None:
    model, hidden = model_of(), torch.zeros(6, SENSORS, dtype=torch.bool)
    values[:, :, sensor] = 4.0
    other = values.clone()
    other[:, :, sensor] = 9.0
    hidden[:, sensor] = True
    with torch.no_grad():
        assert torch.equal(model(values, hidden)[FILLED], model(other, hidden)[FILLED])
        assert not torch.allclose(model(values)[FILLED], model(other)[FILLED])
        invalid = values.clone()
        invalid[:, :, sensor] = INVALID
        assert torch.equal(model(values, hidden)[FILLED], model(invalid)[FILLED])


@pytest.mark.parametrize("transform", ["none", "log1p", "sqrt", "asinh"])
def test_normalisation_can_be_undone_and_invalid_values_are_zero(transform: str) -> None:
    normalise = Normalise(array_of(transform=transform))
    values = torch.tensor([[[0.5, 7.0, INVALID, float("nan")], [1.0, 200.0, float("inf"), 3.0]]])
    normal, valid = normalise(values)
    assert valid.tolist() == [[[True, True, False, False], [True, True, False, True]]]
    assert torch.equal(normal[~valid], torch.zeros(3)) and normal.isfinite().all()
    assert torch.allclose(normalise.invert(normal)[valid], values[valid], rtol=1e-4)


def test_a_hexagon_has_six_neighbours_in_every_row() -> None:
    index = np.arange(30).reshape(5, 6)
    cells, sensors = axial(Face("top", "hex", index)), {}
    convolution = Convolution(1, 16, hexagonal=True)
    for row, column in ((2, 2), (1, 2)):
        sensor = int(index[row, column])
        inputs = (cells == sensor).float()[None, None]
        weight = torch.ones_like(convolution.conv.weight[:1]) * convolution.neighbours
        reached = torch.nn.functional.conv2d(inputs, weight, padding=1)[0, 0] > 0
        sensors[row] = sorted(cells[reached].tolist())
    assert sensors[2] == [7, 8, 13, 14, 15, 19, 20], "an even row: up and down, the one above and the one to its left"
    assert sensors[1] == [2, 3, 7, 8, 9, 14, 15], "an odd row lies half a cell to the right"


def test_index_maps_are_buffers_that_checkpoints_do_not_hold() -> None:
    model = model_of()
    assert any("index" in name for name, _ in model.named_buffers())
    assert not any("index" in name or "normalise" in name for name in model.state_dict())


def test_hidden_channels_are_a_fraction_of_the_valid_ones_only() -> None:
    valid = torch.ones(200, 2, 100, dtype=torch.bool)
    valid[:, :, 60:] = False
    hidden = hidden_channels(valid, 0.6)
    assert torch.equal(hidden.sum(dim=1), torch.full((200,), 36)) and not hidden[:, 60:].any()
    assert not torch.equal(hidden, hidden_channels(valid, 0.6))
    nothing = hidden_channels(torch.zeros(2, 1, 5, dtype=torch.bool), 0.6)
    assert not nothing.any()


def test_an_event_hides_the_same_channels_in_any_batch() -> None:
    valid, index = torch.ones(50, 1, 64, dtype=torch.bool), torch.arange(50)
    hidden = hidden_channels(valid, 0.5, index)
    assert torch.equal(hidden[10:20], hidden_channels(valid[10:20], 0.5, index[10:20]))
    counts = hidden.sum(dim=0)
    assert counts.min() > 8 and counts.max() < 42, "no channel is always hidden"


def test_the_loss_of_a_reconstruction_counts_hidden_valid_channels_only(values: torch.Tensor) -> None:
    model, hidden = model_of(), torch.zeros(6, SENSORS, dtype=torch.bool)
    hidden[:, 3:9] = True
    outputs = model(values, hidden)
    loss = fill_loss(outputs, hidden, "l1", None)
    error = (outputs[FILLED] - outputs["truth"]).abs()
    wanted = hidden[:, None] & outputs["valid"]
    assert torch.allclose(loss, torch.stack([error[event][wanted[event]].mean() for event in range(6)]))
