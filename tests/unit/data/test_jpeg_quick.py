"""A quick look at camera photos: whole ones are not accused, cut ones are found, and ordinary files are not read to their end."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from every_case import every_case
from PIL import Image

from holdfast.data import examine as examined
from holdfast.data.examine import Examination, examine
from holdfast.data.formats.yolo import read_label
from holdfast.data.pixels import Header, look_at, read_header
from holdfast.data.samples import Entry, Facts
from holdfast.data.validate import Settings, validate

SIZE = (1600, 1200)
MOVIE = b"\0\0\0\x18ftypmp42" + np.random.default_rng(0).integers(0, 255, 200_000, dtype=np.uint8).tobytes().replace(b"\xff", b"")


def encoded(seed: int, size: tuple[int, int], *, exif: bytes = b"", quality: int = 80) -> bytes:
    grain = np.random.default_rng(seed).integers(0, 255, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(grain).resize(size).save(buffer, "JPEG", exif=exif, quality=quality)
    return buffer.getvalue()


def exif_with(thumbnail: bytes, orientation: int = 1) -> bytes:
    """What a camera writes: the orientation in the first directory, a small JPEG that the second one points to."""
    first = struct.pack("<HHHIII", 1, 0x0112, 3, 1, orientation, 26)
    second = struct.pack("<HHHIIHHIII", 2, 0x0201, 4, 1, 56, 0x0202, 4, 1, len(thumbnail), 0)
    return b"Exif\0\0" + b"II*\0" + struct.pack("<I", 8) + first + second + thumbnail


def plain(seed: int) -> bytes:
    return encoded(seed, SIZE)


def with_thumbnail(seed: int) -> bytes:
    return encoded(seed, SIZE, exif=exif_with(encoded(seed, (240, 180), quality=95)))


def with_movie(seed: int) -> bytes:
    return encoded(seed, SIZE) + MOVIE


def with_both(seed: int) -> bytes:
    return with_thumbnail(seed) + MOVIE


def with_small_thumbnail(seed: int) -> bytes:
    """Its end lies in the first kilobytes, as the size of the photo does."""
    return encoded(seed, SIZE, exif=exif_with(encoded(seed, (16, 16), quality=5)))


PHOTOS = (plain, with_thumbnail, with_movie, with_both, with_small_thumbnail)


def folder_of(make: Callable[[int], bytes], folder: Path) -> Path:
    for seed in range(8):
        path = folder / ("cat", "dog")[seed % 2] / f"photo{seed}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make(seed))
    return folder


def looked_at(folder: Path, content: bytes) -> Facts:
    (folder / "photo.jpg").write_bytes(content)
    how = Examination(root=folder, read_label=read_label, classes=None, has_boxes=False, quick=True)
    return examine(how, Entry("all", "photo.jpg"))


def test_the_thumbnails_are_as_large_as_those_of_cameras() -> None:
    content = with_thumbnail(0)
    assert 10_000 < content.find(b"\xff\xd9") < 20_000 and b"\xff\xc0\0" in content[:4096]
    assert b"\xff\xd9" in with_small_thumbnail(0)[:2048] and b"\xff\xd9" not in MOVIE


@every_case("make", PHOTOS)
def test_a_quick_look_finds_whole_photos_whole(make: Callable[[int], bytes], tmp_path: Path) -> None:
    folder = folder_of(make, tmp_path)
    assert validate(folder, Settings(jobs=1, quick=True)).problems == validate(folder, Settings(jobs=1)).problems == []


@every_case("make", PHOTOS)
def test_a_quick_look_tells_the_size_of_the_photo_not_of_its_thumbnail(make: Callable[[int], bytes], tmp_path: Path) -> None:
    facts = looked_at(tmp_path, make(0))
    assert (facts.width, facts.height, facts.channels, facts.faults) == (*SIZE, 3, ())


@every_case("make", [plain, with_thumbnail, with_small_thumbnail])
@every_case("share", [0.5, 0.999])
def test_a_quick_look_finds_cut_photos(make: Callable[[int], bytes], share: float, tmp_path: Path) -> None:
    content = make(0)
    facts = looked_at(tmp_path, content[: int(share * len(content))])
    assert [fault.code for fault in facts.faults] == ["image-truncated"]


@every_case("length", range(4000, 5400, 100))
def test_the_end_of_a_thumbnail_does_not_stand_for_the_end_of_a_short_file(length: int, tmp_path: Path) -> None:
    thumbnail = encoded(1, (96, 64), quality=30)
    padded = encoded(0, SIZE, exif=exif_with(thumbnail[:-2] + b"\0" * (3300 - len(thumbnail)) + b"\xff\xd9"))
    assert [fault.code for fault in looked_at(tmp_path, padded[:length]).faults] == ["image-truncated"]


def test_a_photo_cut_inside_its_thumbnail_is_found(tmp_path: Path) -> None:
    assert [fault.code for fault in looked_at(tmp_path, with_thumbnail(0)[:8000]).faults] == ["image-truncated"]


def test_a_quick_look_does_not_take_a_huge_photo_for_a_bomb(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.new("L", (9000, 7200), 90).save(buffer, "JPEG")
    assert [fault.code for fault in looked_at(tmp_path, buffer.getvalue()).faults] == ["image-huge"]


@every_case("make", [plain, with_thumbnail, with_small_thumbnail])
def test_a_quick_look_reads_only_the_ends_of_a_photo(
    make: Callable[[int], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(path: str, *, limit: int) -> bytes:
        raise AssertionError(f"{path} was read to its end")

    monkeypatch.setattr(examined, "read_bytes", never)
    assert looked_at(tmp_path, make(0)).faults == ()


def test_the_rotation_of_a_photo_with_a_thumbnail_is_known_to_a_quick_look(tmp_path: Path) -> None:
    exif = exif_with(encoded(0, (240, 180), quality=95), orientation=6)
    (tmp_path / "photo.jpg").write_bytes(encoded(0, SIZE, exif=exif))
    ends = examined._ends(f"{tmp_path}/photo.jpg")
    assert ends is not None, "the whole file was read"
    assert (ends[1].orientation, ends[1].width, ends[1].height) == (6, *SIZE)


def saved(size: tuple[int, int], mode: str = "RGB", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.open(io.BytesIO(encoded(3, size))).convert(mode).save(buffer, "JPEG", **options)
    return buffer.getvalue()


KINDS = {
    "grey": saved((400, 300), "L"),
    "progressive": saved((401, 303), progressive=True),
    "no subsampling": saved((640, 480), subsampling=0),
    "stored as RGB": saved((640, 480), keep_rgb=True),
    "inks": saved((640, 480), "CMYK"),
    "small": saved((40, 24)),
    "restart markers": saved((640, 480), restart_marker_blocks=8),
}


def outcome(content: bytes, header: Header) -> tuple[Facts | None, str]:
    try:
        return look_at(content, header), ""
    except Exception as error:  # noqa: BLE001 - damaged files raise anything
        return None, f"{type(error).__name__}: {error}"


def damaged_files(content: bytes, count: int) -> Iterator[bytes]:
    """Truncated somewhere or not, and three bytes changed."""
    chance = np.random.default_rng(0)
    for _ in range(count):
        damaged = bytearray(content)
        if chance.random() < 0.5:
            del damaged[int(chance.integers(2, len(damaged))) :]
        for place in chance.integers(2, len(damaged), 3) if len(damaged) > 2 else ():
            damaged[place] = int(chance.integers(256))
        yield bytes(damaged)


@pytest.mark.parametrize("kind", KINDS)
def test_a_jpeg_looks_as_pillow_decodes_it_whole_or_damaged(kind: str) -> None:
    for content in (KINDS[kind], *damaged_files(KINDS[kind], 40)):
        assert outcome(content, read_header(content)) == outcome(content, Header(""))


def decodes_whole(content: bytes) -> bool:
    try:
        Image.open(io.BytesIO(content), formats=["JPEG"]).load()
    except Exception:  # noqa: BLE001 - damaged files raise anything
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_damage_that_a_full_decode_finds_is_found_at_an_eighth_of_the_size(kind: str) -> None:
    missed = [
        number
        for number, content in enumerate(damaged_files(KINDS[kind], 60))
        if not decodes_whole(content) and outcome(content, read_header(content))[0] is not None
    ]
    assert missed == []
