"""Images on the page: what is wrong can be seen, labels lie where they are meant, and nothing odd costs the page."""

from __future__ import annotations

import base64
import io
import shutil
from pathlib import Path

import image_faults as faults
import made_data as made
import numpy as np
import pytest
from every_case import every_case
from PIL import Image

from holdfast.data.validate import Settings
from holdfast.data.visualize.pictures import Picture, read_picture
from holdfast.data.visualize.sample import Sample, Wish
from holdfast.data.visualize.visualize import Drawn, visualize
from holdfast.errors import UsageError

DATA = Path(__file__).parents[4] / "shared" / "data"


def drawn(folder: Path, to: Path, cache: Path | None = None, **wish: object) -> Drawn:
    return visualize(str(folder), Settings(jobs=1, cache=cache), Wish(**wish), to)  # type: ignore[arg-type]


def sample(answer: Drawn, name: str) -> Sample:
    return next(one for one in answer.samples if one.name.endswith(name))


def groups(answer: Drawn) -> list[list[str]]:
    """The names of the samples that are shown side by side."""
    return [[one.name for one in group] for group in answer.groups]


def pixels_of(picture: Picture) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(picture.source.partition(",")[2]))).convert("RGB")


def count_of(picture: Image.Image, colour: tuple[int, int, int]) -> int:
    return int((np.asarray(picture.convert("RGB")) == colour).all(axis=-1).sum())


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Drawn]:
    """A YOLO set with several faults, drawn once."""
    folder = tmp_path_factory.mktemp("faulty") / "set"
    made.yolo(folder)
    faults.zero_area(folder)
    faults.orphan(folder)
    train = folder / "images/train"
    (train / "train05.jpg").write_bytes((train / "train05.jpg").read_bytes()[:500])
    (train / "train06.jpg").write_bytes(b"this is no image" * 20)
    (train / "train07.jpg").write_bytes(b"")
    for name in ("train09", "train10"):
        (train / f"{name}.jpg").write_bytes((train / "train08.jpg").read_bytes())
    (folder / "images/val/val02.jpg").write_bytes((train / "train15.jpg").read_bytes())
    (folder / "labels/train/train13.txt").write_text("7 0.5 0.5 0.2 0.2\n0 0.1 0.1 0.5 0.2 0.7 0.8 0.2 0.9\n")
    answer = drawn(folder, folder.parent / "page.html", folder.parent / "cache", samples=30)
    return folder, answer


def test_suspicious_images_come_first_with_what_is_wrong_with_each(faulty: tuple[Path, Drawn]) -> None:
    marked = [bool(one.marks) for one in faulty[1].samples]
    assert marked == sorted(marked, reverse=True) and sum(marked) >= 10 and len(marked) == 30
    mark = sample(faulty[1], "train03.jpg").marks[0]
    assert (mark.code, mark.severity) == ("box-zero-area", "critical") and "line 3" in mark.words
    first = [one.marks[0].severity for one in faulty[1].samples if one.marks]
    assert first == sorted(first, key=("critical", "warning", "info").index)


def test_a_box_without_area_is_ringed_in_red_and_sound_boxes_are_not_red(faulty: tuple[Path, Drawn]) -> None:
    (picture,) = sample(faulty[1], "train03.jpg").draw().pictures
    bad = [shape for shape in picture.shapes if shape.bad]
    assert len(bad) == 1 and bad[0].ring is not None and picture.shapes[-1] is bad[0]
    assert 0 <= bad[0].ring[0] <= picture.size[0] and 0 <= bad[0].ring[1] <= picture.size[1]
    assert not any(shape.bad or shape.ring for shape in sample(faulty[1], "val02.jpg").draw().pictures[0].shapes)
    assert faulty[1].page.read_text().count("<circle class=wrong") == 1


@every_case("name", ["train05.jpg", "train06.jpg", "train07.jpg"])
def test_a_file_that_does_not_decode_gets_a_tile_that_says_so(faulty: tuple[Path, Drawn], name: str) -> None:
    tile = sample(faulty[1], name)
    assert tile.marks[0].severity == "critical" and tile.draw().words[0] == "cannot be decoded"
    assert not tile.draw().pictures


def test_the_two_samples_of_a_leak_stand_side_by_side_in_one_frame(faulty: tuple[Path, Drawn]) -> None:
    assert ["images/train/train15.jpg", "images/val/val02.jpg"] in groups(faulty[1])
    assert "images/val/val02.jpg (val)" in sample(faulty[1], "train15.jpg").marks[0].words


def test_a_sample_that_is_there_three_times_is_shown_as_one_group(faulty: tuple[Path, Drawn]) -> None:
    names = [one.name for one in faulty[1].samples if any(mark.code == "duplicate-sample" for mark in one.marks)]
    assert names == [f"images/train/train{number}.jpg" for number in ("08", "09", "10")]
    assert names in groups(faulty[1])


def test_a_label_without_an_image_is_told(faulty: tuple[Path, Drawn]) -> None:
    assert [mark.code for mark in sample(faulty[1], "nobody.txt").marks] == ["label-orphaned"]


def test_the_same_seed_makes_the_same_bytes_and_another_one_does_not(faulty: tuple[Path, Drawn], tmp_path: Path) -> None:
    folder, first = faulty
    again = drawn(folder, tmp_path / "again", samples=30)  # without a cache
    assert first.page.read_bytes() == again.page.read_bytes()
    other = drawn(folder, tmp_path / "other", folder.parent / "cache", samples=30, seed=1)
    assert [one.name for one in other.samples] != [one.name for one in first.samples]


def test_only_a_class_or_a_finding_that_was_asked_for_is_drawn(faulty: tuple[Path, Drawn], tmp_path: Path) -> None:
    folder, cache = faulty[0], faulty[0].parent / "cache"
    owls = drawn(folder, tmp_path / "owls", cache, samples=6, classes=("owl",))
    assert len(owls.samples) == 6 and all("owl" in one.classes for one in owls.samples if one.marks == [])
    leaks = drawn(folder, tmp_path / "leaks", cache, findings=("split-leak",))
    assert sorted(one.name for one in leaks.samples) == ["images/train/train15.jpg", "images/val/val02.jpg"]


def test_a_class_or_finding_that_is_not_there_is_answered_with_those_that_are(faulty: tuple[Path, Drawn], tmp_path: Path) -> None:
    for wish, there in (({"classes": ("cow",)}, "cat"), ({"findings": ("mask-size",)}, "box-zero-area")):
        with pytest.raises(UsageError) as told:
            drawn(faulty[0], tmp_path / "x", faulty[0].parent / "cache", **wish)
        assert there in told.value.fix
    assert not (tmp_path / "x").exists()


def test_a_finding_about_the_whole_set_still_shows_samples_and_says_so(tmp_path: Path) -> None:
    made.yolo(tmp_path / "set")
    faults.unused_class(tmp_path / "set")
    answer = drawn(tmp_path / "set", tmp_path / "to", samples=8, findings=("class-unused",))
    assert len(answer.samples) == 8 and "class-unused is about the set as a whole" in answer.notes[0]


def test_polygons_are_drawn_where_they_are(faulty: tuple[Path, Drawn]) -> None:
    (picture,) = sample(faulty[1], "train13.jpg").draw().pictures
    polygon = next(shape for shape in picture.shapes if shape.name == "cat")
    across, down = picture.size
    meant = [(0.1, 0.1), (0.5, 0.2), (0.7, 0.8), (0.2, 0.9)]
    assert polygon.points == [pytest.approx((x * across, y * down), abs=0.1) for x, y in meant]


@every_case(("stated", "portrait"), [((48, 64), True), ((64, 48), False)])
def test_a_turned_image_is_shown_the_way_its_boxes_mean_it(tmp_path: Path, stated: tuple[int, int], portrait: bool) -> None:
    folder = tmp_path / "set"
    made.voc(folder)
    faults.turn(folder)
    faults.label(folder).write_text(made.voc_xml("train03", [(0, 2, 3, 20, 40)], stated))
    answer = drawn(folder, tmp_path / "to", findings=("exif-rotation",))
    (picture,) = sample(answer, "train03.jpg").draw().pictures
    assert (picture.size[1] > picture.size[0]) == portrait
    assert all(0 <= x <= picture.size[0] and 0 <= y <= picture.size[1] for shape in picture.shapes for x, y in shape.points)


def test_where_a_label_does_not_say_which_way_both_ways_are_shown(tmp_path: Path) -> None:
    made.yolo(tmp_path / "set")
    faults.turn(tmp_path / "set")
    answer = drawn(tmp_path / "set", tmp_path / "to", findings=("exif-rotation",))
    stored, turned = sample(answer, "train03.jpg").draw().pictures
    assert (stored.word, turned.word) == ("as stored", "as EXIF turns it") and stored.shapes and turned.shapes
    assert stored.size[0] > stored.size[1] and turned.size[0] < turned.size[1]
    before, after = np.asarray(pixels_of(stored)).astype(int), np.asarray(pixels_of(turned)).astype(int)
    assert np.abs(np.rot90(before, k=-1) - after).max() == 0


def test_masks_tint_their_objects_and_leave_the_rest_as_it_is(tmp_path: Path) -> None:
    made.class_masks(tmp_path / "set")
    answer = drawn(tmp_path / "set", tmp_path / "to", samples=2)
    tile = answer.samples[0]
    assert tile.classes == ("cat", "dog") and len({colour for _, colour in tile.legend}) == 2
    picture = np.asarray(pixels_of(tile.draw().pictures[0])).astype(int)
    plain = Image.open(tmp_path / "set" / tile.name)
    mask = Image.open(str(tmp_path / "set" / tile.name).replace("/images/", "/masks/"))
    size = (picture.shape[1], picture.shape[0])
    before = np.asarray(plain.resize(size, Image.Resampling.NEAREST)).astype(int)
    inside = np.asarray(mask.resize(size, Image.Resampling.NEAREST)) > 0
    changed = np.abs(picture - before).sum(axis=-1) > 30
    assert changed[inside].mean() > 0.8 and changed[~inside].mean() < 0.02


def test_one_mask_per_object_gives_each_object_its_own_colour(tmp_path: Path) -> None:
    for name in ("a", "b"):
        made.write(tmp_path / f"set/{name}/images/{name}.png", made.encoded(ord(name), "PNG"))
        for number in range(3):
            pixels = np.zeros((48, 64), np.uint8)
            pixels[10:30, 20 * number + 2 : 20 * number + 16] = 255
            made.write(tmp_path / f"set/{name}/masks/{number}.png", b"")
            Image.fromarray(pixels).save(tmp_path / f"set/{name}/masks/{number}.png")
    answer = drawn(tmp_path / "set", tmp_path / "to", samples=2)
    picture = pixels_of(answer.samples[0].draw().pictures[0])
    assert all(count_of(picture, colour) > 20 for colour in ((0, 158, 255), (255, 140, 0), (46, 204, 64)))


def test_a_mask_of_another_size_or_without_pixels_does_not_cost_the_page(tmp_path: Path) -> None:
    made.masks(tmp_path / "set")
    faults.small_mask(tmp_path / "set")
    (tmp_path / "set/masks/val/val03.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    answer = drawn(tmp_path / "set", tmp_path / "to", samples=4)
    assert {mark.code for one in answer.samples for mark in one.marks} >= {"mask-size", "mask-unreadable"}


def test_sixteen_bits_palettes_and_transparent_images_can_be_seen(tmp_path: Path) -> None:
    deep = np.tile(np.linspace(1000, 1400, 64), (48, 1)).astype(np.uint16)  # a fiftieth of what 16 bits hold
    Image.fromarray(deep).save(tmp_path / "deep.png")
    Image.fromarray(np.tile(np.arange(64, dtype=np.uint8) * 4, (48, 1))).convert("P").save(tmp_path / "palette.png")
    clear = np.zeros((48, 64, 4), np.uint8)
    clear[:, 32:] = (255, 0, 0, 255)
    Image.fromarray(clear).save(tmp_path / "clear.png")
    for name in ("deep", "palette"):
        assert np.ptp(np.asarray(read_picture(tmp_path / f"{name}.png").pixels)) > 200, name
    pixels = np.asarray(read_picture(tmp_path / "clear.png").pixels)
    assert (pixels[:, 40] == (255, 0, 0)).all() and len(np.unique(pixels[:, :32].reshape(-1, 3), axis=0)) == 2  # a chequerboard


def test_classes_of_folders_are_captions_and_all_are_shown(tmp_path: Path) -> None:
    made.image_folder(tmp_path / "set")
    answer = drawn(tmp_path / "set", tmp_path / "to", samples=6)
    shown = [(one.classes[0], one.split) for one in answer.samples]
    assert sorted(shown) == [(name, split) for name in sorted(made.NAMES) for split in ("train", "val")]


def test_the_data_is_left_as_it_was(tmp_path: Path) -> None:
    made.coco(tmp_path / "set")
    shutil.copytree(tmp_path / "set", tmp_path / "before")
    drawn(tmp_path / "set", tmp_path / "to", samples=4)
    for path in (tmp_path / "before").rglob("*.*"):
        assert (tmp_path / "set" / path.relative_to(tmp_path / "before")).read_bytes() == path.read_bytes()
    assert len(list((tmp_path / "set").rglob("*"))) == len(list((tmp_path / "before").rglob("*")))


@pytest.mark.skipif(not DATA.is_dir(), reason="the real data sets (../shared/data) are not here")
def test_of_real_data_the_bad_boxes_and_the_two_shots_of_one_scene_come_first(tmp_path: Path) -> None:
    answer = drawn(DATA / "bccd/BCCD", tmp_path / "to", samples=6)
    names = [[name.removeprefix("JPEGImages/BloodImage_") for name in group] for group in groups(answer)]
    assert sorted(names[:2]) == [["00338.jpg"], ["00343.jpg"]] and names[2] == ["00038.jpg", "00037.jpg"]
    assert all(any(shape.ring for shape in one.draw().pictures[0].shapes) for one in answer.samples[:2])
