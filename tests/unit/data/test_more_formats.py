"""Shards of WebDataset, folders of Hugging Face, `.ts` files, and data that lies elsewhere are read like all other data."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import made_data as made
import numpy as np
import pytest
from PIL import Image

from holdfast.data.formats.detect import Settings, open_data
from holdfast.data.listing import tar_members
from holdfast.data.problem import Report
from holdfast.data.samples import ImageSet
from holdfast.data.stats.figures import Bars
from holdfast.data.stats.take import take_statistics
from holdfast.data.validate import page, validate
from holdfast.data.visualize.sample import Wish
from holdfast.data.visualize.visualize import visualize
from holdfast.errors import UsageError


def codes(report: Report) -> set[str]:
    return {problem.code for problem in report.problems}


def picture(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((64, 48), Image.Resampling.BICUBIC).save(buffer, "JPEG")
    return buffer.getvalue()


def shard(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def shards(folder: Path) -> None:
    for split, first in (("train", 0), ("val", 60)):
        for number in range(2):
            members: dict[str, bytes] = {}
            for sample in range(first + 30 * number, first + 30 * number + 30):
                members |= {f"{sample:06}.jpg": picture(sample), f"{sample:06}.cls": str(sample % 3).encode()}
            shard(folder / f"{split}-{number:04}.tar", members)


def test_the_samples_of_tar_shards_are_checked_like_files(tmp_path: Path) -> None:
    shards(tmp_path)
    whole = validate(tmp_path, Settings(jobs=1))
    assert (whole.format, whole.splits, whole.problems) == ("webdataset", {"train": 60, "val": 60}, [])
    assert whole.classes == {"0": 40, "1": 40, "2": 40}
    more = {"000200.jpg": picture(7), "000201.jpg": picture(201)[:-100], "000202.json": b"{", "000202.jpg": picture(202)}
    shard(tmp_path / "val-0002.tar", more)
    report = validate(tmp_path, Settings(jobs=1))
    found = {problem.code: problem for problem in report.problems}
    assert found["image-truncated"].files == ["val-0002.tar/000201.jpg"]
    assert found["label-unreadable"].files == ["val-0002.tar/000202.json"]
    assert found["split-leak"].evidence["pairs"] == [["train-0000.tar/000007.jpg", "val-0002.tar/000200.jpg"]]
    assert codes(validate(tmp_path, Settings(jobs=1, quick=True))) >= {"image-truncated", "label-unreadable", "split-leak"}


@pytest.mark.parametrize("content", [b"", b"no tar file" * 100])
def test_a_damaged_shard_is_told_and_the_others_are_read(content: bytes, tmp_path: Path) -> None:
    made.write(tmp_path / "alone" / "train-000.tar", content)
    made.write(tmp_path / "first" / "a-000.tar", content)
    shards(tmp_path / "first")
    for folder, samples in (("alone", 0), ("first", 120)):
        report = validate(tmp_path / folder, Settings(jobs=1))
        assert report.samples == samples and codes(report) == {"label-unreadable"}


def test_shards_have_statistics_and_can_be_looked_at(tmp_path: Path) -> None:
    shards(tmp_path / "set")
    figures = {figure.key: figure for figure in take_statistics(tmp_path / "set", Settings(jobs=1, pixels=True)).figures}
    assert {"classes", "image-sizes", "pixels-red"} <= figures.keys()
    drawn = visualize(str(tmp_path / "set"), Settings(jobs=1), Wish(samples=4), tmp_path / "page.html")
    assert all(len(one.draw().pictures) == 1 for one in drawn.samples)  # a picture, not words instead of one


def test_a_tar_file_leads_nowhere_else_and_is_never_unpacked(tmp_path: Path) -> None:
    secret = tmp_path / "secret.jpg"
    secret.write_bytes(picture(1))
    shard(tmp_path / "set/train.tar", {"../secret.jpg": picture(2), "/etc/passwd.jpg": picture(3), "a.jpg": picture(4)})
    with tarfile.open(tmp_path / "set/train.tar", "a") as archive:
        link = tarfile.TarInfo("b.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        archive.addfile(link)
    data = open_data(tmp_path / "set", Settings())
    assert isinstance(data, ImageSet) and [entry.image for entry in data.entries] == ["train.tar/a.jpg"]
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["train.tar"]


def test_a_tar_file_that_claims_an_endless_header_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, 1 << 32
    (tmp_path / "a.tar").write_bytes(info.tobuf() + bytes(1024))
    with pytest.raises(ValueError, match="longer than a megabyte"):
        tar_members(str(tmp_path / "a.tar"))
    (tmp_path / "b.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(ValueError, match="not a tar file"):
        tar_members(str(tmp_path / "b.tar"))


@pytest.mark.parametrize("place", ["", "images/", "images/train/"])
def test_images_without_labels_are_checked_as_images(place: str, tmp_path: Path) -> None:
    (tmp_path / place).mkdir(parents=True, exist_ok=True)
    for number in range(4):
        (tmp_path / f"{place}{number}.jpg").write_bytes(picture(number))
    (tmp_path / f"{place}cut.jpg").write_bytes(picture(9)[:-100])
    report = validate(tmp_path, Settings(jobs=1))
    assert (report.format, report.samples, report.classes) == ("image-folder", 5, {})
    assert codes(report) == {"image-truncated"} and report.notes[0].startswith("no labels")
    assert list(report.splits) == ["train" if "train" in place else "all"]


@pytest.mark.parametrize("splits", [("train", "val"), ()])
def test_from_the_folder_of_a_project_the_classes_are_those_of_the_folder_with_the_images(
    splits: tuple[str, ...], tmp_path: Path
) -> None:
    for number in range(12):
        folder = "/".join(("data", "set", *splits[number % 3 == 0 :][:1], "cat" if number % 2 else "dog"))
        made.write(tmp_path / folder / f"{number}.png", picture(number))
    made.write(tmp_path / "src" / "train.py", "")
    report = validate(tmp_path, Settings(jobs=1))
    assert report.classes == {"cat": 6, "dog": 6} and set(report.splits) == set(splits or ("all",))


def hugging_face(folder: Path, labels: dict[str, list[int]]) -> None:
    """As `DatasetDict.save_to_disk` writes it."""
    import pyarrow as pa

    chance = np.random.default_rng(0)
    for split, some in labels.items():
        (folder / split).mkdir(parents=True)
        table = pa.table({"x": chance.normal(size=len(some)), "label": pa.array(some, pa.int64())})
        with pa.ipc.new_stream(str(folder / split / "data-00000-of-00001.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=50)
        names = {"features": {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "x": {"dtype": "float64"}}}
        (folder / split / "dataset_info.json").write_text(json.dumps(names))
        (folder / split / "state.json").write_text("{}")
    (folder / "dataset_dict.json").write_text(json.dumps({"splits": list(labels)}))


def test_a_folder_of_hugging_face_is_read_with_its_splits_and_the_names_of_its_classes(tmp_path: Path) -> None:
    hugging_face(tmp_path, {"train": [0, 1] * 60, "test": [1, 0] * 30})
    report = validate(tmp_path, Settings())
    assert (report.format, report.splits, report.problems) == ("arrow", {"train": 120, "test": 60}, [])
    assert report.classes == {"cat": 90, "dog": 90}
    classes = take_statistics(tmp_path, Settings()).figures[0]
    assert isinstance(classes, Bars) and set(classes.counts) == {"cat", "dog"}
    hugging_face(tmp_path / "more", {"train": [0, 1] * 60, "test": [1, 2] * 30})
    (outside,) = [problem for problem in validate(tmp_path / "more", Settings()).problems if problem.code == "class-out-of-range"]
    assert outside.count == 30 and outside.example.endswith(": 2")
    file = tmp_path / "test/data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes()[:-400])
    assert "table-unreadable" in codes(validate(file.parent, Settings()))


TS = """# a comment
@problemName Made
@timeStamps false
@univariate false
@dimensions 2
@classLabel true walk run
@data
"""


@pytest.mark.parametrize("ending", ["arrow", "feather"])
def test_an_arrow_file_with_wrong_offsets_is_unreadable_and_no_crash(ending: str, tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import feather

    table = pa.table({"text": [f"row {number:03}" for number in range(100)]})
    path = tmp_path / f"train.{ending}"
    if ending == "feather":
        feather.write_feather(table, path, compression="uncompressed")
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    offsets = np.arange(40, 48, dtype="<i4") * 7
    content = path.read_bytes()
    assert content.count(offsets.tobytes()) == 1
    path.write_bytes(content.replace(offsets.tobytes(), (offsets + 0x7FFF0000).tobytes()))
    program = "import sys; from holdfast.data.validate import *; print(validate(sys.argv[1], Settings(jobs=1)).problems[0].code)"
    answer = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=120)
    assert (answer.returncode, answer.stdout.strip()) == (0, "table-unreadable"), answer.stderr


def series(folder: Path, *more: str) -> None:
    chance = np.random.default_rng(0)
    for split, count in (("TRAIN", 60), ("TEST", 30)):
        rows = []
        for number in range(count):
            parts = [",".join(f"{value:.4f}" for value in chance.normal(size=20 + number % 3)) for _ in range(2)]
            rows.append(":".join([*parts, ("walk", "run")[number % 2]]))
        (folder / f"Made_{split}.ts").write_text(TS + "\n".join([*rows, *(more if split == "TRAIN" else ())]) + "\n")


def test_time_series_of_different_lengths_are_read_with_their_classes(tmp_path: Path) -> None:
    series(tmp_path)
    report = validate(tmp_path, Settings())
    assert (report.format, report.splits, report.problems) == ("ts", {"train": 60, "test": 30}, [])
    assert report.classes == {"run": 45, "walk": 45}
    keys = {figure.key for figure in take_statistics(tmp_path, Settings()).figures}
    assert {"classes", "column:dim_0", "entries:dim_0"} <= keys


def test_a_line_of_a_time_series_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    series(tmp_path, "1,2,?:3,4,5:walk", "1,2:run", "1,x:2,3:run", "1,2:3,4:swim")
    report = validate(tmp_path, Settings())
    found = {problem.code: problem for problem in report.problems}
    assert report.splits["train"] == 61 and codes(report) == {"table-unreadable", "non-finite-input"}
    assert found["non-finite-input"].evidence["in_files"] == {"Made_TRAIN.ts": [60]}
    assert [re.sub(r"^[^:]*:(\d+):.*", r"\1", case) for case in found["table-unreadable"].cases] == ["69", "70", "71"]


def test_time_stamps_and_targets_of_time_series_are_understood(tmp_path: Path) -> None:
    rows = "\n".join(f"(0,{row}.5),(1,2.0),(2,{row % 7}):{row / 3}" for row in range(30))
    (tmp_path / "a.ts").write_text("@timeStamps true\n@targetLabel true\n@data\n" + rows)
    figures = {figure.key: figure for figure in take_statistics(tmp_path / "a.ts", Settings()).figures}
    assert (figures["column:dim_0"].high, figures["column:label"].high) == (29.5, 29 / 3)  # type: ignore[union-attr]


def test_data_in_another_place_is_copied_once_and_read_as_if_it_were_here(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    rows = "".join(f"{row},{row * row % 97},{'ab'[row % 2]}\n" for row in range(200))
    memory.pipe("/bucket/set/train.csv", f"x,y,label\n{rows}nan,1,a\n".encode())
    memory.pipe("/bucket/set/sub/val.csv", f"x,y,label\n{rows.replace('1', '3')}".encode())
    report = validate("memory://bucket/set", Settings(cache=tmp_path))
    assert (report.path, report.splits) == ("memory://bucket/set", {"train": 201, "val": 200})
    assert "non-finite-input" in codes(report)
    assert validate("memory://bucket/set", Settings(cache=tmp_path)).remembered
    memory.rm("/bucket/set/sub/val.csv")
    assert validate("memory://bucket/set", Settings(cache=tmp_path)).splits == {"train": 201}
    assert validate("memory://bucket/set/train.csv", Settings()).samples == 201
    assert validate((tmp_path / "none").as_uri().replace("none", "remote"), Settings()).format == "table"


@pytest.mark.parametrize(
    ("address", "words", "fix"),
    [
        ("s3://bucket/set", "s3:// cannot be read", "pip install s3fs"),
        ("memory://nothing/here", "cannot be listed", "check the address"),
        ("carrier-pigeon://x", "carrier-pigeon:// cannot be read", "s3://"),
    ],
)
def test_an_address_that_cannot_be_read_says_what_to_do(address: str, words: str, fix: str) -> None:
    if address.startswith("s3"):
        pytest.importorskip("fsspec")
        try:
            import s3fs  # type: ignore[import-not-found] # noqa: F401
        except ImportError:
            pass
        else:
            pytest.skip("s3fs is installed")
    with pytest.raises(UsageError, match=words) as raised:
        validate(address, Settings())
    assert fix in raised.value.fix


def test_the_page_of_a_report_shows_the_images_that_are_wrong(tmp_path: Path) -> None:
    for number in range(30):
        for folder, content in (("images", picture(number)), ("labels", b"0 0.5 0.5 0.3 0.3\n")):
            path = tmp_path / folder / "train" / f"{number:02}{'.jpg' if folder == 'images' else '.txt'}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    (tmp_path / "data.yaml").write_text("train: images/train\nval: images/train\nnames: [cell]\n")
    (tmp_path / "labels/train/03.txt").write_text("0 0.5 0.5 0 0\n")
    (tmp_path / "images/train/04.jpg").write_bytes(picture(4)[:-200])
    report = validate(tmp_path, Settings(jobs=1))
    assert {"box-zero-area", "image-truncated"} <= codes(report)
    html = page(report)
    zero_area = html.partition("box-zero-area")[2].partition("<h2>")[0]
    assert "data:image/png;base64," in zero_area and "<figcaption>images/train/03.jpg" in zero_area
    assert "<circle class=wrong" in zero_area
    truncated = html.partition("> image-truncated")[2].partition("<h2>")[0]
    assert "images/train/04.jpg" in truncated and "data:image" not in truncated  # a decoder may crash on it
    assert "http" not in html
