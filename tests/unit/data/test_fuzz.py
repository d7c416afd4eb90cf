"""Damaged files of every kind: no crash, no hang, no memory that grows, and nothing outside the folder is read."""

from __future__ import annotations

import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import fuzzed_data as fuzzed
import pytest

from holdfast.data.validate import Report, Settings, validate
from holdfast.errors import HoldfastError

MEGABYTES = 400_000  # KB that a whole round of damaged files may add at most
FEW = [("yolo", 60), ("voc", 30), ("coco", 12), ("single", 48)]
MANY = [("yolo", 900), ("voc", 500), ("coco", 200), ("single", 600)]


@pytest.fixture
def strangers() -> Iterator[list[str]]:
    """Files that are opened outside of the test's folder, Python's own and the system's left out."""
    seen: list[str] = []
    on = [True]

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if on[0] and event in ("open", "socket.connect", "os.system", "subprocess.Popen"):
            seen.append(str(arguments[0]))

    sys.addaudithook(hook)
    yield seen
    on[0] = False


def looked_at(path: Path) -> Report | None:
    """What cannot be read at all is an error in words; anything else is a report."""
    try:
        return validate(path, Settings(jobs=1))
    except HoldfastError as error:
        assert error.problem and error.fix
        return None


def sets(kind: str, folder: Path, count: int, seed: int) -> Iterator[Path]:
    if kind == "coco":
        yield from fuzzed.coco_files(folder, count, seed)
    elif kind == "single":
        yield from fuzzed.single_files(folder, count, seed)
    else:
        (fuzzed.yolo_with if kind == "yolo" else fuzzed.voc_with)(folder, count, seed)
        yield folder


def go_through(kind: str, count: int, seed: int, folder: Path, strangers: list[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    made = 0
    for path in sets(kind, folder, count, seed):
        strangers.clear()
        looked_at(path)
        ours = (
            str(folder),
            sys.prefix,
            sys.base_prefix,
            str(Path(__file__).parents[3]),
            "/proc",
            "/dev",
            "/sys",
            "/etc/localtime",
        )
        outside = [one for one in strangers if one.startswith("/") and not one.startswith(ours)]
        assert not outside, outside[:5]
        made += 1
    assert made
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES


@pytest.mark.parametrize(("kind", "count"), FEW)
def test_damaged_files_end_neither_the_scan_nor_the_machine(kind: str, count: int, tmp_path: Path, strangers: list[str]) -> None:
    go_through(kind, count, 1, tmp_path, strangers)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("kind", "count"), MANY)
def test_two_thousand_damaged_files_end_nothing(kind: str, count: int, tmp_path: Path, strangers: list[str]) -> None:
    go_through(kind, count, 2, tmp_path, strangers)
