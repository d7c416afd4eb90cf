"""An array is what its config says, or an error that names the place and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.errors import UsageError
from holdfast.train.sensors.array import read_array, read_targets
from holdfast.train.settings import SensorsSettings, read_settings

CHANNELS = {"charge": {"invalid": -1}}


def array_of(**faces: Any) -> Any:
    return read_array({"channels": CHANNELS, "faces": faces})


def test_faces_number_the_sensors_row_by_row_from_their_start() -> None:
    array = array_of(front={"shape": [2, 3]}, rest={"start": 6, "count": 4})
    assert array.sensors == 10
    assert array.faces[0].index.tolist() == [[0, 1, 2], [3, 4, 5]] and array.faces[0].kind == "grid"
    assert array.faces[1].index.tolist() == [6, 7, 8, 9] and array.faces[1].kind == "set"


def test_an_index_map_can_be_a_file_with_empty_cells(tmp_path: Path) -> None:
    (tmp_path / "map.csv").write_text("2,-1\n0,1\n")
    np.save(tmp_path / "map.npy", [[2, -1], [0, 1]])
    for name in ("map.csv", "map.npy"):
        face = array_of(a={"kind": "hex", "index": str(tmp_path / name)}).faces[0]
        assert face.index.tolist() == [[2, -1], [0, 1]] and sorted(face.sensors.tolist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("described", "problem", "fix"),
    [
        ({"channels": CHANNELS, "facs": {}}, "no setting 'facs' in array", "did you mean faces?"),
        ({"channels": {"charge": {"scal": 2}}, "faces": {"a": {"count": 2}}}, "'scal' in array.channels.charge", "scale"),
        ({"channels": {"charge": {"transform": "log"}}, "faces": {"a": {"count": 2}}}, "transform = 'log'", "log1p"),
        ({"channels": {"charge": {"scale": 0}}, "faces": {"a": {"count": 2}}}, "scale = 0 is not above 0", "positive"),
        ({"channels": CHANNELS, "faces": {"a": {"count": 4}, "b": {"start": 3, "count": 2}}}, "more than one place: 3", "cell"),
        ({"channels": CHANNELS, "faces": {"a": {"start": 2, "count": 2}}}, "2 of the 4 sensors are on no face: 0, 1", "one cell"),
        ({"channels": CHANNELS, "faces": {"a": {"shape": [2, 2], "index": [1, 2, 3]}}}, "has 3 cells, its shape [2, 2] 4", ""),
        ({"channels": CHANNELS, "faces": {"a": {"index": [[0, 1.5]]}}}, "array.faces.a.index cannot be read", "sensor numbers"),
        ({"channels": CHANNELS, "faces": {"a": {"index": "nowhere.npy"}}}, "No such file", ".npy"),
        ({"channels": CHANNELS, "faces": {"a": {"index": list(range(10_001))}}}, "10,001 cells are too many", "a .npy"),
        ({"channels": CHANNELS}, "the array has no faces", "--config"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_fix(described: dict[str, Any], problem: str, fix: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_array(described)
    assert problem in caught.value.problem and fix in caught.value.fix


def test_targets_have_the_common_loss_unless_they_have_their_own() -> None:
    energy, place = read_targets({"energy": None, "place": {"branch": ["x", "y"], "loss_fn": "l1", "weight": 3}}, "mse", 0.5)
    assert (energy.loss_fn, energy.loss_beta, energy.branches) == ("mse", 0.5, ("energy",))
    assert (place.loss_fn, place.weight, place.branches) == ("l1", 3.0, ("x", "y"))
    with pytest.raises(UsageError, match="loss_fn = 'huber'"):
        read_targets({"energy": {"loss_fn": "huber"}}, "mse", None)


def test_settings_with_parts_come_from_yaml_a_file_or_json_and_go_back_to_flags(tmp_path: Path) -> None:
    from holdfast.train.arguments import Arguments, argv_of, parse

    config = tmp_path / "sensors.yaml"
    config.write_text("task: mae\ndata: d.root\ngrad_clip: 2\narray: {channels: {q: {}}, faces: {a: {count: 3}}}\n")
    settings = read_settings(SensorsSettings, config, {})
    assert (settings.objective, settings.max_grad_norm) == ("mae", 2.0) and settings.array["faces"]["a"]["count"] == 3
    again = parse(argv_of(Arguments(task="sensors", settings=settings)))
    assert again.settings == settings
    assert read_settings(SensorsSettings, None, {"data": "d", "array": str(config)}).array == settings.array
    settings.write(tmp_path / "settings.yaml")
    assert read_settings(SensorsSettings, tmp_path / "settings.yaml", {}) == settings


def test_on_arm_one_worker_has_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {}
    for machine in ("x86_64", "aarch64"):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        monkeypatch.setattr("os.sched_getaffinity", lambda _: range(16), raising=False)
        settings = SensorsSettings(data="d")
        chosen[machine] = (settings.workers, settings.num_threads)
    assert chosen == {"x86_64": (4, 1), "aarch64": (1, 4)}
    assert SensorsSettings(data="d", workers=2).workers == 2
