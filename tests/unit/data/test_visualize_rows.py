"""Rows, events, samples of code and lines of text: those that a report means are found again and drawn, not others."""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path

import made_data as made
import numpy as np
import pytest
from every_case import every_case
from PIL import Image

from holdfast.data.validate import Settings
from holdfast.data.visualize.charts import as_image, as_planes, as_series, row_tile
from holdfast.data.visualize.sample import Wish as Wanted
from holdfast.data.visualize.visualize import Drawn, visualize

DATA = Path(__file__).parents[4] / "shared" / "data"


def drawn(path: Path | str, to: Path, samples: int = 12, findings: tuple[str, ...] = (), **settings: object) -> Drawn:
    return visualize(str(path), Settings(jobs=1, **settings), Wanted(samples=samples, findings=findings), to)  # type: ignore[arg-type]


def marked(answer: Drawn) -> dict[str, list[str]]:
    """The names of the samples by the finding that they were drawn for."""
    found: dict[str, list[str]] = {}
    for one in answer.samples:
        for mark in one.marks:
            found.setdefault(mark.code, []).append(one.name)
    return found


def put_wrong(table: dict[str, dict[str, np.ndarray]]) -> None:
    table["train"]["a"][17] = np.nan
    table["train"]["b"][[5, 9, 44]] = -999
    for name in table["train"]:
        table["val"][name][3] = table["train"][name][11]
        table["train"][name][100] = table["train"][name][99]


@every_case("kind", ["csv", "npz", "root"])
def test_the_very_rows_that_are_wrong_are_drawn_and_equal_ones_side_by_side(tmp_path: Path, kind: str) -> None:
    made.table(tmp_path / "set", kind, put_wrong)
    answer = drawn(tmp_path / "set", tmp_path / "to")
    train, val = f"train.{kind} row", f"val.{kind} row"
    found = marked(answer)
    assert found["non-finite-input"] == [f"{train} 17"]
    assert found["split-leak"] == [f"{val} 3", f"{train} 11"]
    assert found["duplicate-row"] == [f"{train} 100", f"{train} 99"]
    assert found["column-sentinel"][0] in {f"{train} {row}" for row in (5, 9, 44)}
    assert [f"{val} 3", f"{train} 11"] in [[one.name for one in group] for group in answer.groups]
    said = {mark.code: mark.words for one in answer.samples for mark in one.marks}
    assert said["non-finite-input"] == "a is nan" and said["column-sentinel"] == "b is -999"
    assert len({one.name for one in answer.samples}) == 12


def test_rows_are_found_where_a_column_names_their_split(tmp_path: Path) -> None:
    """A report counts the rows of each split for itself; row 20 of the file is row 10 of both."""
    rows = [f"{number * 1.37 % 11},{number % 7},{('train', 'val')[number % 2]}" for number in range(200)]
    rows[21] = f"nan,3,{('train', 'val')[1]}"
    made.write(tmp_path / "all.csv", "a,n,split\n" + "\n".join(rows) + "\n")
    assert marked(drawn(tmp_path / "all.csv", tmp_path / "to"))["non-finite-input"] == ["all.csv row 21"]


def test_classes_share_the_page_and_can_be_asked_for(tmp_path: Path) -> None:
    made.table(tmp_path / "set", "csv")
    answer = drawn(tmp_path / "set", tmp_path / "to", samples=6)
    assert sorted((*one.classes, one.split) for one in answer.samples) == [
        (kind, split) for kind in "012" for split in ("train", "val")
    ]
    one = visualize(str(tmp_path / "set"), Settings(), Wanted(samples=9, classes=("2",)), tmp_path / "two")
    assert [sample.classes for sample in one.samples] == [("2",)] * 9


def test_the_same_seed_draws_the_same_rows_whatever_the_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made.table(tmp_path / "set", "npz", put_wrong)
    first = drawn(tmp_path / "set", tmp_path / "one")
    monkeypatch.setattr("holdfast.data.columns.ROWS", 37)
    other = drawn(tmp_path / "set", tmp_path / "two")
    assert [one.name for one in first.samples] == [one.name for one in other.samples]


def test_arrays_of_pictures_are_drawn_as_pictures_in_their_own_shape(tmp_path: Path) -> None:
    down, across = np.mgrid[0:16, 0:24]
    pictures = np.stack([np.stack([across + number, down, across * 0], axis=-1) for number in range(40)]).astype(np.uint8)
    for place, values in enumerate((pictures, np.moveaxis(pictures, -1, 1))):
        folder = tmp_path / f"set{place}"
        folder.mkdir()
        np.save(folder / "x_train.npy", values)
        np.save(folder / "y_train.npy", np.random.default_rng(0).permutation(np.arange(40) % 4))
        (picture,) = drawn(folder, tmp_path / f"to{place}", samples=4).samples[0].draw().pictures
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(picture.source.partition(",")[2])))).astype(int)
        assert pixels.shape == (16, 24, 3) and picture.size[0] / picture.size[1] == pytest.approx(24 / 16, rel=0.02)
        assert pixels[0, -1, 0] - pixels[0, 0, 0] >= 20 and pixels[-1, 0, 1] - pixels[0, 0, 1] >= 14 and pixels[..., 2].max() == 0


@every_case(
    ("shape", "is_picture", "is_series"),
    [((28, 28), True, False), ((3, 8, 8), True, False), ((32, 32, 3), True, False), ((1, 1, 9, 9), True, False),
     ((6, 100), False, True), ((100, 6), False, True), ((10,), False, False), ((2, 2), False, False)],
)  # fmt: skip
def test_pictures_and_series_are_told_from_other_arrays(shape: tuple[int, ...], is_picture: bool, is_series: bool) -> None:
    values = np.random.default_rng(0).random(shape)
    planes = as_planes(values)
    assert (planes is not None) == is_picture
    assert (planes is None and as_series(values) is not None) == is_series
    if planes is not None:
        assert np.ptp(np.asarray(as_image(planes))) > 100


def test_values_that_are_no_numbers_are_seen_in_a_picture() -> None:
    values = np.random.default_rng(0).random((12, 12))
    values[3, 4] = np.nan
    assert tuple(np.asarray(as_image(values[..., None]))[3, 4]) == (255, 0, 255)


@every_case(
    "row",
    [
        {},
        {"empty": np.empty(0)},
        {"nothing": np.full(5, np.nan), "inf": np.inf, "nan": float("nan"), "word": "whale\n\0 ɸ"},
        {"huge": np.array([1e308, -1e308]), "many": np.arange(5000.0), "whole": 2**62, "truth": np.bool_(True)},
        {f"column {number}": float(number) for number in range(300)},
        {**{f"array {number}": np.arange(number) for number in range(40)}, "picture": np.zeros((20, 20))},
        {"zeros": np.zeros((9, 9)), "series": np.full((2, 50), np.inf)},
    ],
    ids=["nothing", "empty", "not finite", "huge", "wide", "many arrays", "flat"],
)
def test_any_row_can_be_drawn(row: dict[str, object]) -> None:
    tile = row_tile(row, {"column 3": (0.0, 0.0)}, {"column 5"})
    shown = len(tile.pictures) + len(tile.plots) + len(tile.values)
    assert shown + tile.more == len(row) and shown <= 36
    assert not any("nan" in path or "inf" in path for plot in tile.plots for _, path in plot.paths)
    first = "column 5" if "column 5" in row else "inf" if "inf" in row else None
    assert next((one.name for one in tile.values if one.bad), None) == first


@pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets (../shared/data) are not here")
def test_rows_of_one_collision_are_shown_side_by_side(tmp_path: Path) -> None:
    import uproot

    answer = drawn(DATA / "hep_root/uproot-Zmumu.root", tmp_path / "to", samples=8, findings=("split-leak",))
    with uproot.open(DATA / "hep_root/uproot-Zmumu.root") as file:
        events = file["events"].arrays(["Run", "Event"], library="np")
    rows = [int(one.name.rsplit(" ", 1)[1].replace(",", "")) for one in answer.samples]
    assert len(rows) == 8 and len(set(rows)) == 8
    for first, second in zip(rows[0::2], rows[1::2], strict=True):
        assert events["Run"][first] == events["Run"][second] and events["Event"][first] == events["Event"][second]


OWN_SETS = """
import numpy as np

class Set:
    def __init__(self, seed):
        self.images = np.random.default_rng(seed).random((60, 3, 12, 12)).astype(np.float32)
    def __len__(self):
        return len(self.images)
    def __getitem__(self, place):
        if place in (4, 7):
            raise KeyError("lost")
        return self.images[place], place % 3

def some():
    train, val = Set(0), Set(1)
    train.images[30, 0, 2, 2] = np.nan
    val.images[21] = train.images[12]
    return train, val

class Detection(Set):
    def __getitem__(self, place):
        boxes = [[1.0, 1.0, 9.0, 9.0], [2.0, 2.0, 7.0, 7.0 if place != 9 else 2.0]]
        return self.images[place], {"boxes": np.array(boxes), "labels": np.array([1, 2])}

def boxes():
    return Detection(0)
"""


@pytest.fixture
def own_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "drawn_sets.py").write_text(OWN_SETS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "drawn_sets", raising=False)
    return "drawn_sets"


def test_samples_of_a_data_set_keep_their_places_although_some_before_them_raise(own_sets: str, tmp_path: Path) -> None:
    found = marked(drawn(f"{own_sets}:some", tmp_path / "to", samples=14))
    assert found["non-finite-input"] == ["train[30]"]
    assert sorted(found["sample-unreadable"]) == ["train[4]", "train[7]", "val[4]", "val[7]"]
    assert found["split-leak"] == ["val[21]", "train[12]"]


def test_boxes_of_a_detection_set_are_drawn_and_the_bad_one_in_red(own_sets: str, tmp_path: Path) -> None:
    answer = drawn(f"{own_sets}:boxes", tmp_path / "to", samples=4)
    red = {one.name: [shape.bad for shape in one.draw().pictures[0].shapes] for one in answer.samples}
    assert red.pop("all[9]") == [False, True] and all(bad == [False, False] for bad in red.values())


def test_lines_with_unknown_words_are_shown_and_lines_of_two_splits_side_by_side(tmp_path: Path) -> None:
    made.text(tmp_path / "set")
    lines = (tmp_path / "set/train.txt").read_text().splitlines()
    lines[31:37] = ["submarine " * 9] * 6
    made.write(tmp_path / "set/train.txt", "\n".join(lines) + "\n")
    val = (tmp_path / "set/val.txt").read_text().splitlines()
    val[20:30] = lines[100:110]
    made.write(tmp_path / "set/val.txt", "\n".join(val) + "\n")
    answer = drawn(tmp_path / "set", tmp_path / "to")
    unknown = [one for one in answer.samples for mark in one.marks if mark.code == "unknown-tokens" and mark.words == "submarine"]
    assert unknown and {one.name for one in unknown} <= {f"train.txt:{line}" for line in range(32, 38)}
    assert all("submarine submarine" in one.draw().values[0].text for one in unknown)
    pairs = [[one.name for one in group] for group in answer.groups if len(group) == 2]
    assert pairs and all(pair[0] == f"train.txt:{int(pair[1].removeprefix('val.txt:')) + 80}" for pair in pairs)


def test_a_token_id_beyond_the_vocabulary_is_shown_among_the_others(tmp_path: Path) -> None:
    made.text(tmp_path / "set")
    (tmp_path / "set/val.txt").unlink()
    (tmp_path / "set/train.txt").unlink()
    ids = np.random.default_rng(0).integers(1, 11, 4000).astype("<u2")
    ids[1234] = 500
    ids.tofile(tmp_path / "set/train.bin")
    answer = drawn(tmp_path / "set", tmp_path / "to", findings=("token-out-of-range",))
    (sample,) = answer.samples
    words = sample.draw().values[0].text.split()
    assert "500" in words and "whale" in words and sample.marks[0].words == "id 500, the 1,235th of the file"


def test_a_file_that_cannot_be_read_gets_a_tile_that_says_so(tmp_path: Path) -> None:
    made.table(tmp_path / "set", "npz")
    made.write(tmp_path / "set/test.npz", b"no archive")
    answer = drawn(tmp_path / "set", tmp_path / "to")
    assert marked(answer) == {"array-unreadable": ["test.npz"]} and len(answer.samples) == 12
    assert answer.samples[0].draw().words[0] == "cannot be read"
