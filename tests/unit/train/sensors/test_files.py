"""Events are the same from every format; a file that does not fit is an error that names it, the branch and the shapes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "trainings"))
from loop_sensors import ARRAY, SENSORS, events, settings_of

from holdfast.errors import UsageError
from holdfast.train.sensors.chunks import Block, read_events
from holdfast.train.sensors.files import open_files
from holdfast.train.sensors.opening import blocks, open_events

ROWS = 90


def write(path: Path, columns: dict[str, Any]) -> Path:
    if path.suffix == ".root":
        uproot = pytest.importorskip("uproot", reason="needs pip install 'holdfast[sensors]'")
        with uproot.recreate(path) as file:
            file.mktree("events", {name: np.dtype((one.dtype, one.shape[1:])) for name, one in columns.items()})
            for start in range(0, ROWS, 30):
                file["events"].extend({name: one[start : start + 30] for name, one in columns.items()})
    elif path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({name: pa.array(one.tolist()) for name, one in columns.items()}), path, row_group_size=40)
    else:
        (np.savez_compressed if "packed" in path.stem else np.savez)(path, **columns)
    return path


@pytest.mark.parametrize("name", ["events.root", "events.parquet", "events.npz", "packed.npz"])
def test_any_rows_of_any_format_are_the_same_events(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    columns = events(ROWS)
    opened = open_events(settings_of({"data": str(write(tmp_path / name, columns))}))
    file = opened.files[0]
    assert file.rows == ROWS
    for start, stop in ((0, 90), (25, 75), (39, 41), (89, 90)):
        read = read_events(file, Block(0, start, stop), opened.array, opened.targets)
        assert np.array_equal(read.values[:, 0], columns["charge"][start:stop])
        assert np.array_equal(read.values[:, 1], columns["time"][start:stop])
        wanted = np.stack([columns["energy"], columns["x"], columns["y"]], axis=1)[start:stop]
        assert np.allclose(read.targets, wanted)


@pytest.mark.parametrize(("name", "ends"), [("events.root", [30, 60]), ("events.parquet", [40, 80])])
def test_chunks_end_where_baskets_and_row_groups_do(name: str, ends: list[int], tmp_path: Path) -> None:
    opened = open_events(settings_of({"data": str(write(tmp_path / name, events(ROWS))), "chunksize": 50}))
    made = blocks(opened.files[0], 0, 0, ROWS, 50)
    assert [block.stop for block in made][:2] == ends and made[-1].stop == ROWS
    assert sum(block.stop - block.start for block in opened.train) == 81
    assert [(block.start, block.stop) for block in opened.val] == [(81, 90)]


def test_one_large_basket_is_read_in_parts(tmp_path: Path) -> None:
    opened = open_events(settings_of({"data": str(write(tmp_path / "events.npz", events(ROWS))), "chunksize": 20}))
    assert [block.stop - block.start for block in opened.train] == [20, 20, 20, 20, 1]


@pytest.mark.parametrize("name", ["events.root", "events.parquet", "events.npz"])
def test_a_branch_of_another_shape_is_named_with_both_shapes(name: str, tmp_path: Path) -> None:
    columns = events(ROWS)
    columns["time"] = columns["time"][:, :30]
    path = write(tmp_path / name, columns)
    with pytest.raises(UsageError) as caught:
        open_events(settings_of({"data": str(path)}))
    assert str(path) in caught.value.problem and "'time' has shape (events, 30); expected (events, 35)" in caught.value.problem


def test_a_missing_branch_names_the_nearest_one(tmp_path: Path) -> None:
    path = write(tmp_path / "events.npz", events(ROWS))
    array = {**ARRAY, "channels": {"charge": {"branch": "chrge"}}}
    with pytest.raises(UsageError, match=r"events\.npz has no array 'chrge'") as caught:
        open_events(settings_of({"data": str(path), "array": array}))
    assert caught.value.fix.startswith("did you mean charge?")


def test_lists_of_different_lengths_are_refused_with_the_expected_one(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    lists = [[1.0] * (SENSORS + number % 2) for number in range(20)]
    pq.write_table(
        pa.table({"charge": lists, "time": lists, "energy": [1.0] * 20, "x": [1.0] * 20, "y": [1.0] * 20}), tmp_path / "u.parquet"
    )
    with pytest.raises(UsageError, match=r"'charge' has 35 to 36 values per event; expected 35"):
        open_events(settings_of({"data": str(tmp_path / "u.parquet")}))


def test_files_are_found_by_path_folder_and_pattern(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        write(tmp_path / name, events(ROWS))
    (tmp_path / "notes.txt").write_text("")
    for data in (str(tmp_path), str(tmp_path / "*.npz")):
        assert [file.path.name for file in open_files(data)] == ["a.npz", "b.npz"]
    with pytest.raises(UsageError, match="has no events"):
        open_files(str(tmp_path / "c*.npz"))
    with pytest.raises(UsageError, match=r"notes\.txt is not a file of events"):
        open_files(str(tmp_path / "notes.txt"))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(UsageError, match=r"broken\.npz cannot be read"):
        open_files(str(tmp_path / "broken.npz"))


@pytest.mark.parametrize("ending", ["root", "parquet", "npz"])
def test_more_files_than_may_be_open_are_read(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.train.sensors.files._MOST_OPEN", 2)
    parts = [events(ROWS, seed) for seed in range(4)]
    for number, columns in enumerate(parts):
        write(tmp_path / f"{number}.{ending}", columns)
    opened = open_events(settings_of({"data": str(tmp_path), "num_threads": 2}))
    for _ in range(2):
        for number, file in enumerate(opened.files):
            read = read_events(file, Block(number, 10, 20), opened.array, opened.targets)
            assert np.array_equal(read.values[:, 0], parts[number]["charge"][10:20])
    assert sum(file._handle is not None for file in opened.files) <= 2


def test_normalisation_is_measured_on_valid_values_and_what_is_given_stays(tmp_path: Path) -> None:
    columns = events(ROWS)
    array = {**ARRAY, "channels": {"charge": {"transform": "sqrt"}, "time": {"offset": 0.5, "scale": 2.0}}}
    settings = settings_of({"data": str(write(tmp_path / "events.npz", columns)), "array": array})
    opened = open_events(settings)
    valid = np.sqrt(columns["charge"][:81][columns["charge"][:81] >= 0])
    charge, time = opened.array.channels
    assert charge.offset == pytest.approx(valid.mean(), rel=1e-4) and charge.scale == pytest.approx(valid.std(), rel=1e-4)
    assert (time.offset, time.scale) == (0.5, 2.0)
    kept = opened.settings(settings).array["channels"]
    assert kept["charge"]["offset"] == charge.offset and kept["time"] == {"branch": "time", "offset": 0.5, "scale": 2.0}


def test_validation_data_in_other_units_is_a_warning(tmp_path: Path) -> None:
    train, val = write(tmp_path / "train.npz", events(ROWS)), events(ROWS)
    val["charge"] = np.where(val["charge"] > 0, 10 * val["charge"], val["charge"])
    other = write(tmp_path / "val.npz", val)
    words = open_events(settings_of({"data": str(train), "val": str(other)})).notes
    assert [line.partition(":")[2].split()[0] for line in words] == ["charge"]
    assert open_events(settings_of({"data": str(train), "val": str(train)})).notes == ()
