"""Data from strangers: nothing outside the folder is read, nothing grows without end, nothing inside is run."""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import made_data as made
import numpy as np
import pytest
from every_case import every_case
from PIL import Image

from holdfast.data.formats import coco, yolo
from holdfast.data.image_checks import look_alike
from holdfast.data.problem import Fault, Faults
from holdfast.data.validate import Report, Settings, validate


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """All files that are opened, as the interpreter itself tells (an audit hook cannot be removed, so it is switched off)."""
    seen: list[str] = []
    on = [True]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if on[0] and event in ("open", "socket.connect", "subprocess.Popen", "os.system"):
            seen.append(str(arguments[0]))

    sys.addaudithook(hook)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield seen
    on[0] = False


def found(path: Path, **settings: object) -> Report:
    return validate(path, Settings(jobs=1, **settings))  # type: ignore[arg-type]


def codes(report: Report) -> set[str]:
    return {problem.code for problem in report.problems}


def a_voc_file(folder: Path, head: str, name: str) -> None:
    made.voc(folder)
    made.write(folder / "Annotations/train03.xml", f"{head}\n<annotation><object><name>{name}</name></object></annotation>")


def test_entities_that_multiply_are_refused(tmp_path: Path) -> None:
    laughs = "".join(f'<!ENTITY l{number} "{f"&l{number - 1};" * 10}">' for number in range(1, 12))
    a_voc_file(tmp_path, f'<!DOCTYPE a [<!ENTITY l0 "ha">{laughs}]>', "&l11;")
    report = found(tmp_path)
    assert codes(report) == {"label-unreadable"} and "entity" in report.problems[0].example


def test_entities_that_name_a_file_are_refused_and_the_file_stays_closed(tmp_path: Path, opened: list[str]) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    opened.clear()
    folder = tmp_path / "set"
    a_voc_file(folder, f'<!DOCTYPE a [<!ENTITY x SYSTEM "file://{secret}">]>', "&x;")
    assert codes(found(folder)) == {"label-unreadable"}
    a_voc_file(folder, f'<!DOCTYPE annotation SYSTEM "file://{secret}">', "cat")
    assert codes(found(folder)) == {"label-unreadable"}
    assert str(secret) not in opened


@pytest.mark.parametrize("way", ["../outside/a.jpg", "/{}/outside/a.jpg", "images/../../outside/a.jpg"])
def test_lists_and_labels_cannot_lead_out_of_the_folder(way: str, tmp_path: Path, opened: list[str]) -> None:
    outside = tmp_path / "outside/a.jpg"
    made.write(outside, made.encoded(900))
    way = way.format(str(tmp_path).lstrip("/"))
    folder = tmp_path / "set"
    made.yolo(folder)
    made.write(folder / "train.txt", f"./images/train/train00.jpg\n{way}\n")
    made.write(folder / "data.yaml", "train: train.txt\nval: images/val\nnames: [cat, dog, owl]\n")
    coco = tmp_path / "coco"
    made.coco(coco)
    listed = coco / "annotations/instances_train.json"
    listed.write_text(listed.read_text().replace("train03.jpg", way))
    opened.clear()
    assert "path-outside" in codes(found(folder))
    assert "path-outside" in codes(found(coco))
    assert not [path for path in opened if "outside" in path]


def test_a_link_out_is_followed_only_into_a_folder_that_was_named(tmp_path: Path, opened: list[str]) -> None:
    for number in range(4):
        made.write(tmp_path / f"store/images/test/t{number}.jpg", made.encoded(900 + number))
        made.write(tmp_path / f"store/labels/test/t{number}.txt", made.yolo_line(0, 2, 3, 20, 30))
    folder = tmp_path / "set"
    made.yolo(folder)
    (folder / "images/test").symlink_to(tmp_path / "store/images/test")
    (folder / "labels/test").symlink_to(tmp_path / "store/labels/test")
    made.write(folder / "data.yaml", (folder / "data.yaml").read_text() + "test: images/test\n")
    opened.clear()
    assert "path-outside" in codes(found(folder))
    assert not [path for path in opened if "store" in path]
    allowed = found(folder, also=(tmp_path / "store",))
    assert allowed.problems == [] and allowed.splits["test"] == 4


def test_an_absolute_path_in_data_yaml_is_read_only_where_it_was_named(tmp_path: Path) -> None:
    made.yolo(tmp_path / "a")
    other = tmp_path / "b"
    for number in range(4):
        made.write(other / f"images/test/t{number}.jpg", made.encoded(900 + number))
        made.write(other / f"labels/test/t{number}.txt", made.yolo_line(0, 2, 3, 20, 30))
    described = tmp_path / "a/data.yaml"
    described.write_text(described.read_text() + f"test: {other}/images/test\n")
    assert codes(found(tmp_path / "a")) == {"path-outside"}
    report = found(tmp_path / "a", also=(other,))
    assert report.problems == [] and report.splits["test"] == 4


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    made.yolo(tmp_path)
    (tmp_path / "images/train/again").symlink_to(tmp_path / "images")
    assert found(tmp_path).splits == made.MANY


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    made.yolo(tmp_path)
    os.mkfifo(tmp_path / "images/train/pipe.jpg")
    assert found(tmp_path).problems == []


def png(width: int, height: int, pixels: bytes) -> bytes:
    def part(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", pixels) + part(b"IEND", b"")


@every_case(("side", "code"), [(60_000, "image-unreadable"), (9_000, "image-huge")])
def test_a_picture_that_would_fill_the_memory_is_not_decoded(side: int, code: str, tmp_path: Path) -> None:
    made.yolo(tmp_path)
    pixels = zlib.compress(b"\0" * 1000) if code == "image-unreadable" else os.urandom(side * side // 1500)
    made.write(tmp_path / "images/train/train03.jpg", b"")
    made.write(tmp_path / "images/train/train03.png", png(side, side, pixels))
    (tmp_path / "images/train/train03.jpg").unlink()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report = found(tmp_path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert codes(report) == {code}
    assert grown < 100_000, f"{grown} KB more"


def test_an_archive_that_grows_without_end_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.data.formats.arrays._LARGE", 1 << 24)  # as if a gigabyte were 16 MB: quicker to make
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(1 << 22))
    report = found(tmp_path / "x.npz")
    assert codes(report) == {"array-unreadable"} and "grows" in report.problems[0].example


MEASURED = """
import resource, sys
from pathlib import Path
import numpy, PIL.Image, pyarrow.parquet
from holdfast.data.validate import Settings, validate
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = validate(Path(sys.argv[1]), Settings(jobs=1))
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(report.samples, grown // (1024 if sys.platform == "linux" else 1024 * 1024))
"""


def megabytes_more(path: Path) -> tuple[int, int]:
    """How many samples a process of its own finds, and by how many MB its memory grows at most meanwhile."""
    done = subprocess.run([sys.executable, "-c", MEASURED, str(path)], capture_output=True, text=True, check=True)
    samples, grown = done.stdout.split()
    return int(samples), int(grown)


def long_texts(rows: int) -> Any:
    import pyarrow as pa

    texts = pa.array([f"{number}" * 12_000 for number in range(8)])
    return pa.DictionaryArray.from_arrays(pa.array(np.arange(rows) % 8, pa.int32()), texts)


def in_lists(values: Any) -> Any:
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array(np.arange(0, len(values) + 1, 10), pa.int32()), values)


def in_structures(values: Any) -> Any:
    import pyarrow as pa

    return pa.StructArray.from_arrays([values, pa.array(np.arange(len(values)))], ["text", "number"])


@every_case("shape", [lambda values: values, in_lists, in_structures], ids=["plain", "in lists", "in structures"])
def test_a_few_long_texts_in_many_rows_of_parquet_are_held_once(shape: Callable[[Any], Any], tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = shape(long_texts(60_000))
    pq.write_table(pa.table({"text": column}), tmp_path / "texts.parquet")
    assert (tmp_path / "texts.parquet").stat().st_size < 400_000
    samples, grown = megabytes_more(tmp_path)
    assert samples == len(column) and grown < 200, f"{grown} MB: decoded they are 720"


def test_texts_of_a_dictionary_with_gaps_are_read_as_they_are(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from holdfast.data.columns import TableSet
    from holdfast.data.formats.detect import open_data

    words = ["b", None, "a", "b", "", None] * 3
    pq.write_table(pa.table({"word": words, "list": [[word, "x"] for word in words]}), tmp_path / "x.parquet")
    data = open_data(tmp_path, Settings())
    assert isinstance(data, TableSet)
    (chunk,) = data.parts[0].chunks()
    assert chunk["word"].values.tolist() == [word or "" for word in words]
    assert chunk["list"].values.tolist() == [one for word in words for one in (word or "", "x")]


def test_a_large_coco_file_is_not_held_in_memory(tmp_path: Path) -> None:
    for name in "ab":
        made.write(tmp_path / f"{name}.png", made.encoded(ord(name), "PNG"))
    outline = np.random.default_rng(0).uniform(1, 47, 60).round(2).tolist()
    start, end = '{"category_id": 1, "bbox": [1, 1, 9, 9], ', f'"segmentation": [{outline}]}}'
    rows = [f'{start}"id": {number}, "image_id": {7 + (number > 3)}, {end}' for number in range(100_000)]
    made.write(
        tmp_path / "labels.json",
        f'{{"info": {{"é": "{"é" * 1000}"}}, "annotations": [{", ".join(rows)}], "categories": [{{"id": 1, "name": "é"}}], '
        '"images": [{"id": 7, "file_name": "a.png"}, {"id": 5, "file_name": "b.png"}]}',
    )
    samples, grown = megabytes_more(tmp_path)
    assert samples == 2 and grown < 60, f"{grown} MB for a file of {(tmp_path / 'labels.json').stat().st_size >> 20}"
    report = found(tmp_path)
    assert report.classes == {"é": 4} and codes(report) == {"box-duplicate", "label-empty", "label-orphaned"}


def frames(folder: Path, count: int) -> None:
    """What a camera sees that does not move: the same scene, with other noise in each frame."""
    scene = np.asarray(made.picture(0)).astype(np.int16)
    for number in range(count):
        noise = np.random.default_rng(number).integers(-4, 5, scene.shape)
        picture = Image.fromarray((scene + noise).clip(0, 255).astype(np.uint8))
        path = folder / ("val" if number % 4 == 0 else "train") / "class" / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)


def test_an_image_with_more_objects_than_any_has_is_not_read_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yolo, "MOST_OBJECTS", 50)
    monkeypatch.setattr(coco, "MOST_OBJECTS", 50)
    made.yolo(tmp_path / "yolo")
    made.write(tmp_path / "yolo/labels/train/train03.txt", "0 0.5 0.5 0.1 0.1\n" * 51)
    made.coco(tmp_path / "coco")
    file = tmp_path / "coco/annotations/instances_train.json"
    content = json.loads(file.read_text())
    content["annotations"] += [{**content["annotations"][0], "id": 10_000 + one} for one in range(60)]
    made.write(file, json.dumps(content))
    for format_name, words in (("yolo", "51 lines"), ("coco", "62 annotations: of one image the first 50")):
        problem = next(one for one in found(tmp_path / format_name).problems if one.code == "label-unreadable")
        assert problem.count == 1 and words in problem.example


def test_of_a_million_faults_all_are_counted_and_ten_thousand_kept() -> None:
    faults = Faults(Fault("box-outside", f"{number % 7}.txt", number, "far") for number in range(30_000))
    faults.add([Fault("box-outside", "last.txt", 0, "")])
    (problem,) = faults.problems()
    assert (problem.count, len(problem.files), len(problem.cases)) == (30_001, 8, 10_000)
    assert problem.example == "0.txt: far"


def test_frames_of_a_camera_that_does_not_move_take_little_memory_and_leak(tmp_path: Path) -> None:
    frames(tmp_path, 500)
    samples, grown = megabytes_more(tmp_path)
    assert samples == 500 and grown < 60, f"{grown} MB"
    leak, near = (next(one for one in found(tmp_path).problems if one.code == code) for code in ("split-leak", "near-duplicate"))
    assert (leak.count, near.count) == (125, 374)
    assert {first.split("/")[0] for first, _ in leak.evidence["pairs"]} == {"train"}


@every_case("apart", [0, 3, 6, 7])
def test_a_look_alike_is_found_up_to_six_bits_of_its_hash_apart(apart: int) -> None:
    chance = np.random.default_rng(apart)
    hashes = chance.integers(0, 1 << 63, 400, dtype=np.uint64)
    thumbnails = chance.integers(0, 255, (400, 256), dtype=np.uint8)
    for one in range(0, 400, 2):
        bits = sum(1 << bit for bit in chance.choice(64, apart, replace=False).tolist())
        hashes[one + 1] = hashes[one] ^ np.uint64(bits)
        thumbnails[one + 1] = thumbnails[one]
    pairs = list(look_alike(hashes, thumbnails))
    assert pairs == ([(one, one + 1) for one in range(0, 400, 2)] if apart <= 6 else [])


def test_a_yaml_file_that_would_make_objects_makes_none(tmp_path: Path) -> None:
    made.yolo(tmp_path)
    sprung = tmp_path / "sprung"
    evil = f"train: images/train\nval: images/val\nnames: !!python/object/apply:os.system ['touch {sprung}']\n"
    made.write(tmp_path / "data.yaml", evil)
    found(tmp_path, format="yolo")
    assert not sprung.exists()


def test_a_yaml_file_that_multiplies_is_harmless(tmp_path: Path) -> None:
    made.yolo(tmp_path)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]" for number in range(1, 12)]
    made.write(tmp_path / "data.yaml", "\n".join([*lines, "train: images/train", "val: images/val", "names: *a11"]))
    assert found(tmp_path).splits == made.MANY


def test_json_nested_without_end_is_a_fault_not_a_crash(tmp_path: Path) -> None:
    made.coco(tmp_path)
    made.write(tmp_path / "annotations/instances_train.json", '{"images": ' + "[" * 200_000 + '"annotations" "categories"')
    assert "label-unreadable" in codes(found(tmp_path))


def test_words_in_labels_cannot_steer_the_terminal_or_the_page(tmp_path: Path) -> None:
    from holdfast.data.validate import page

    made.yolo(tmp_path)
    made.write(tmp_path / "labels/train/train03.txt", "<script>alert(1)</script> \x1b[2J 0 0 0\n")
    report = found(tmp_path)
    assert codes(report) == {"label-unreadable"}
    assert "<script>alert" not in page(report)


def test_a_list_of_an_rntuple_that_claims_more_than_there_is_is_not_believed(tmp_path: Path) -> None:
    import uproot

    path = tmp_path / "events.root"
    with uproot.recreate(path) as file:
        file.mkrntuple("events", {"energy": np.float64}).extend({"energy": np.arange(50.0)})
    assert validate(tmp_path, Settings()).samples == 50
    with uproot.open(path) as file:
        link = file["events"].footer.cluster_group_records[0].page_list_link
    content = bytearray(path.read_bytes())
    items = link.locator.offset + 24  # behind the type, the checksum of the header and the size of the list
    assert content[items : items + 4] == struct.pack("<I", 1), "one cluster"
    content[items : items + 12] = struct.pack("<Iq", 0xFFFFFFFF, 0)  # so many records, each of which takes no bytes
    path.write_bytes(content)
    report = validate(tmp_path, Settings())
    assert [problem.code for problem in report.problems] == ["tree-unreadable"]
    assert "claims 4,294,967,295 items" in report.problems[0].example
