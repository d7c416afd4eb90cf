"""Statistics of image data: what is counted is what was put in, in every format, and a bad file costs only itself."""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path

import made_data as made
import numpy as np
import pytest
from every_case import every_case
from PIL import Image

from holdfast.data.formats.detect import Settings
from holdfast.data.stats.figures import Bars, Grid, Histogram, Statistics, as_row, from_row, statistics_from
from holdfast.data.stats.take import take_statistics
from holdfast.errors import UsageError

WRITERS = {"yolo": made.yolo, "voc": made.voc, "coco": made.coco}


def taken(path: Path, **settings: object) -> Statistics:
    return take_statistics(path, Settings(**{"jobs": 1, **settings}))  # type: ignore[arg-type]


def figure(found: Statistics, key: str) -> Bars | Histogram | Grid:
    return next(one for one in found.figures if one.key == key)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sets")
    for name, write in {**WRITERS, "image-folder": made.image_folder, "class-masks": made.class_masks}.items():
        write(folder / name)
    return {path.name: path for path in folder.iterdir()}


@every_case("format", WRITERS)
def test_objects_are_counted_by_class_and_split_as_they_were_drawn(format: str, sets: dict[str, Path]) -> None:
    found = taken(sets[format])
    drawn: dict[str, Counter[str]] = {name: Counter() for name in made.NAMES}
    images: Counter[str] = Counter()
    for split, _, seed in made.samples():
        kinds = [made.NAMES[box[0]] for box in made.boxes(seed)]
        images.update(set(kinds))
        for kind in kinds:
            drawn[kind][split] += 1
    bars = figure(found, "classes")
    assert isinstance(bars, Bars)
    assert found.format == format and found.splits == made.MANY
    assert bars.counts == {name: dict(drawn[name]) for name in bars.counts}
    assert set(bars.counts) == set(made.NAMES) and bars.columns["images"] == dict(images)


@every_case("format", WRITERS)
def test_box_sizes_shapes_and_positions_are_those_of_the_boxes(format: str, sets: dict[str, Path]) -> None:
    found = taken(sets[format])
    boxes = [box[1:] for _, _, seed in made.samples() for box in made.boxes(seed)]
    sizes = [math.sqrt((right - left) * (bottom - top)) for left, top, right, bottom in boxes]
    plot = figure(found, "box-size")
    assert isinstance(plot, Histogram)
    assert sum(plot.totals) == len(sizes) and plot.below == plot.above == 0
    assert plot.low == pytest.approx(min(sizes), rel=1e-3) and plot.high == pytest.approx(max(sizes), rel=1e-3)
    assert plot.mean == pytest.approx(np.mean(sizes), rel=1e-3) and plot.deviation == pytest.approx(np.std(sizes), rel=1e-2)
    edges = [edge * (1 + 1e-9) for edge in plot.edges]
    assert np.abs(np.histogram(sizes, edges)[0] - plot.totals).sum() <= 0.1 * len(sizes)  # bins are 2 % wide
    where = figure(found, "box-positions")
    assert isinstance(where, Grid)
    middles = {((top + bottom) / 2 / 48, (left + right) / 2 / 64) for left, top, right, bottom in boxes}
    side = len(where.values)
    fields = {(int(down * side), int(across * side)) for down, across in middles}
    assert {(down, across) for down, row in enumerate(where.values) for across, value in enumerate(row) if value} == fields


def test_classes_in_one_image_are_counted_once_for_each_image(sets: dict[str, Path]) -> None:
    grid = figure(taken(sets["coco"]), "co-occurrence")
    assert isinstance(grid, Grid)
    both: Counter[frozenset[str]] = Counter()
    for _, _, seed in made.samples():
        both[frozenset(made.NAMES[box[0]] for box in made.boxes(seed))] += 1
    for place, one in enumerate(grid.names):
        for other, value in enumerate(grid.values[place]):
            wanted = {one, grid.names[other]}
            assert value == sum(count for names, count in both.items() if wanted <= names)


def test_one_class_alone_leaves_out_the_objects_and_images_of_the_others(sets: dict[str, Path]) -> None:
    whole, alone = taken(sets["voc"]), taken(sets["voc"], classes=frozenset({"owl"}))
    bars = figure(alone, "classes")
    assert isinstance(bars, Bars) and list(bars.counts) == ["owl"]
    all_bars = figure(whole, "classes")
    assert isinstance(all_bars, Bars)
    assert bars.counts["owl"] == all_bars.counts["owl"] and alone.samples == all_bars.columns["images"]["owl"]
    with pytest.raises(UsageError, match="no class wolf"):
        taken(sets["voc"], classes=frozenset({"wolf"}))


def test_images_in_folders_are_counted_by_the_folder(sets: dict[str, Path]) -> None:
    bars = figure(taken(sets["image-folder"]), "classes")
    assert isinstance(bars, Bars)
    assert bars.totals == {"cat": 16, "dog": 15, "owl": 15} and bars.unit == "images"


def test_pixels_of_class_masks_are_counted_by_name(sets: dict[str, Path]) -> None:
    found = taken(sets["class-masks"])
    bars = figure(found, "masks-classes")
    assert isinstance(bars, Bars)
    pixels = np.array([np.bincount(np.asarray(made.mask(seed, (1, 2))).ravel(), minlength=3) for *_, seed in made.samples()])
    assert bars.totals == dict(zip(("background", "cat", "dog"), pixels.sum(axis=0).tolist(), strict=True))
    assert not any(one.key == "classes" for one in found.figures), "the classes of a mask are no classes of images"


def test_instances_are_counted_in_each_image(tmp_path: Path) -> None:
    for number in range(6):
        made.write(tmp_path / f"images/{number}.png", made.encoded(number, "PNG"))
        (tmp_path / "instances").mkdir(exist_ok=True)
        made.mask(number, tuple(range(1, 2 + number % 3))).save(tmp_path / f"instances/{number}.png")
    plot = figure(taken(tmp_path), "instances-objects")
    assert isinstance(plot, Histogram)
    assert (plot.low, plot.high, plot.totals) == (1, 3, [2, 2, 2])


def test_means_and_deviations_of_pixels_are_exact(sets: dict[str, Path]) -> None:
    files = sorted(sets["image-folder"].rglob("*.png"))
    values = np.concatenate([np.asarray(Image.open(file)).reshape(-1, 3) for file in files]).astype(np.float64)
    found = taken(sets["image-folder"], pixels=True)
    for place, colour in enumerate(("red", "green", "blue")):
        plot = figure(found, f"pixels-{colour}")
        assert isinstance(plot, Histogram)
        assert plot.mean == pytest.approx(values[:, place].mean()) and plot.deviation == pytest.approx(values[:, place].std())
        assert plot.totals == np.histogram(values[:, place], plot.edges)[0].tolist()


def test_bad_files_are_named_and_the_others_counted(tmp_path: Path) -> None:
    made.yolo(tmp_path)
    images = sorted((tmp_path / "images/train").iterdir())
    images[0].write_bytes(b"")
    images[1].write_bytes(b"no image at all")
    (tmp_path / f"labels/train/{images[2].stem}.txt").write_text("0 a b c d\n")
    found = taken(tmp_path, pixels=True)
    assert found.unreadable_count == 3
    assert list(found.unreadable) == [
        f"images/train/{images[0].name}", f"images/train/{images[1].name}", f"labels/train/{images[2].stem}.txt:1",
    ]  # fmt: skip
    sizes = figure(found, "image-sizes")
    assert isinstance(sizes, Bars) and sum(sizes.totals.values()) == 44


def test_boxes_of_an_image_of_unknown_size_are_counted_but_lie_nowhere(tmp_path: Path) -> None:
    made.voc(tmp_path)
    (tmp_path / "JPEGImages/train00.jpg").write_bytes(b"no image")
    label = tmp_path / "Annotations/train00.xml"
    label.write_text(re.sub("<size>.*</size>", "", label.read_text()))
    found, whole = taken(tmp_path), 2 * sum(made.MANY.values())
    bars, sizes, where = (figure(found, key) for key in ("classes", "box-size", "box-positions"))
    assert isinstance(bars, Bars) and isinstance(sizes, Histogram) and isinstance(where, Grid)
    assert sum(bars.totals.values()) == whole and sum(sizes.totals) == sum(map(sum, where.values)) == whole - 2
    assert "without area" not in sizes.note


def test_a_sound_set_has_nothing_that_could_not_be_read(sets: dict[str, Path]) -> None:
    assert not any(taken(path).unreadable_count for path in sets.values())


def test_many_processes_count_what_one_counts(tmp_path: Path) -> None:
    made.yolo(tmp_path)
    for number in range(60):
        made.write(tmp_path / f"images/train/more{number}.jpg", made.encoded(100 + number))
    alone, many = (taken(tmp_path, jobs=jobs).as_row() for jobs in (1, 2))
    assert {**alone, "seconds": 0} == {**many, "seconds": 0}


def test_what_did_not_change_is_not_measured_again_and_ctrl_c_keeps_what_was_done(tmp_path: Path) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    made.yolo(data)
    told: list[int] = []

    def stop(done: int, total: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take_statistics(data, Settings(jobs=1, cache=cache), stop)
    first = take_statistics(data, Settings(jobs=1, cache=cache), lambda done, _: told.append(done))
    assert len(told) <= 46 - 20 and not first.remembered
    second = taken(data, cache=cache)
    assert second.remembered and [as_row(one) for one in second.figures] == [as_row(one) for one in first.figures]
    (data / "labels/val/val00.txt").write_text("")
    third = taken(data, cache=cache)
    assert not third.remembered and sum(figure(third, "classes").totals.values()) == 90  # type: ignore[union-attr]


def test_statistics_come_back_from_json_as_they_were(sets: dict[str, Path]) -> None:
    found = taken(sets["yolo"])
    again = statistics_from(found.as_row())
    assert again.as_row() == {**found.as_row(), "seconds": 0.0}
    assert [from_row(as_row(one)) for one in found.figures] == found.figures


DATA = Path(__file__).parents[4] / "shared" / "data"
real = pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets (../shared/data) are not here")


@real
def test_the_blood_cells_are_counted_alike_in_both_formats_but_for_the_two_boxes_without_area() -> None:
    voc, yolo = taken(DATA / "bccd/BCCD"), taken(DATA / "bccd/yolo")
    bars, other = figure(voc, "classes"), figure(yolo, "classes")
    assert isinstance(bars, Bars) and isinstance(other, Bars)
    assert bars.totals == {"RBC": 4155, "WBC": 372, "Platelets": 361} and other.totals["RBC"] == 4153
    one, same = figure(voc, "box-size"), figure(yolo, "box-size")
    assert isinstance(one, Histogram) and isinstance(same, Histogram)
    assert "2 without area" in one.note and "without area" not in same.note
    assert sum(one.totals) == sum(same.totals) == 4153 + 372 + 361
    assert one.mean == pytest.approx(same.mean, rel=1e-4) and voc.unreadable_count == yolo.unreadable_count == 0


@real
def test_the_nuclei_are_counted_one_by_one() -> None:
    found = taken(DATA / "nuclei_dsb2018_256")
    files = [
        file for split in ("train", "val", "test") for file in sorted((DATA / "nuclei_dsb2018_256/instances" / split).iterdir())
    ]
    objects = [len(np.unique(np.asarray(Image.open(file)))) - 1 for file in files]
    plot = figure(found, "instances-objects")
    assert isinstance(plot, Histogram)
    assert (plot.low, plot.high, plot.mean) == (min(objects), max(objects), pytest.approx(np.mean(objects)))
    assert sum(one.key.endswith("-positions") for one in found.figures) == 1, "both folders of masks cover the same"
