"""Where the time of a sample goes: each part is put to the right account, and nothing stays patched."""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from json import loads
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_case import every_case
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset

from holdfast.errors import UsageError
from holdfast.loading.error_origin import of_error, of_text, sample_of, where
from holdfast.loading.measurer import tree_memory
from holdfast.loading.phases import SampleFailed, measured_phases
from holdfast.loading.setting import Phases
from holdfast.loading.source import Batches, Source, opened

SLEEP = 0.01


class Made(Dataset[Any]):
    """A data set of one function, and a transform if it is given one."""

    def __init__(self, get: Callable[[int], Any], transform: Callable[[Any], Any] | None = None) -> None:
        self.get, self.transform = get, transform

    def __len__(self) -> int:
        return 40

    def __getitem__(self, place: int) -> Any:
        value = self.get(place)
        return self.transform(value) if self.transform else value


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for place in range(20):
            time.sleep(SLEEP)
            yield torch.zeros(2) + place


def slowly(value: Any) -> Any:
    time.sleep(SLEEP)
    return value


def looked_at(dataset: Any, *, seconds: float = 0.3, **how: Any) -> Phases:
    return measured_phases(Source(DataLoader(dataset, batch_size=4, **how), None), seconds, lambda _: None, device=None)


def most(phases: Phases) -> str:
    return max(phases.seconds, key=lambda name: phases.seconds[name])


@pytest.fixture
def slow_file(tmp_path: Path) -> Iterator[Path]:
    """A file whose bytes take their time, as those of a slow disk: a pipe that somebody fills slowly."""
    pipe = tmp_path / "slow"
    os.mkfifo(pipe)
    over = threading.Event()

    def fill() -> None:
        while not over.is_set():
            with contextlib.suppress(BrokenPipeError), pipe.open("wb", buffering=0) as file:
                time.sleep(SLEEP)
                file.write(b"0123")

    filler = threading.Thread(target=fill, daemon=True)
    filler.start()
    yield pipe
    over.set()
    waited_for = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    filler.join(10)
    os.close(waited_for)


def test_time_in_a_slow_file_is_reading_and_time_in_a_transform_is_augmenting(slow_file: Path) -> None:
    assert most(looked_at(Made(lambda _: len(slow_file.read_bytes())))) == "read"
    assert most(looked_at(Made(lambda _: len(open(slow_file, "rb").read())))) == "read"  # noqa: SIM115, PTH123 - as people write it
    assert most(looked_at(Made(float, slowly))) == "augment"


@every_case("inside", [lambda data: Subset(data, list(range(30))), lambda data: ConcatDataset([data, data])])
def test_the_transform_of_a_data_set_inside_another_is_found(inside: Callable[[Any], Any]) -> None:
    assert most(looked_at(inside(Made(float, slowly)))) == "augment"


def test_the_rest_of_getitem_is_not_called_augmenting_and_that_is_said() -> None:
    phases = looked_at(Made(slowly))
    assert most(phases) == "sample"
    assert any("transform" in note for note in phases.notes)


def test_collating_and_streams_have_their_own_account() -> None:
    assert most(looked_at(Made(float), collate_fn=slowly)) == "collate"
    assert most(looked_at(Stream())) == "sample"


def test_decoding_is_told_from_reading_also_where_a_function_was_imported_by_name(tmp_path: Path) -> None:
    picture, numbers, text = tmp_path / "a.png", tmp_path / "a.npz", tmp_path / "a.json"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (400, 400, 3), dtype=np.uint8)).save(picture)
    np.savez_compressed(numbers, x=np.random.default_rng(0).normal(size=50_000))
    text.write_text(json.dumps(list(range(20_000))))

    def image(_: int) -> int:
        with Image.open(picture) as opened:
            return len(opened.tobytes())

    assert most(looked_at(Made(image))) == "decode"
    assert most(looked_at(Made(lambda _: float(np.load(numbers)["x"].sum())))) == "decode"
    assert most(looked_at(Made(lambda _: len(loads(text.read_text()))))) == "decode"


def test_what_is_read_is_the_same_with_the_clock_around_it(tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"one\r\ntwo\n")
    np.save(tmp_path / "a.npy", np.arange(5))

    def get(_: int) -> int:
        with open(file, newline="") as opened:  # noqa: PTH123 - as people write it
            assert opened.readlines() == ["one\r\n", "two\n"] and opened.mode == "r"
        with file.open("rb") as raw:
            assert isinstance(raw, io.BufferedReader)
            assert raw.read(3) == b"one" and raw.seek(-4, os.SEEK_END) == 5 and raw.read() == b"two\n"
        with (tmp_path / "out").open("a") as written:
            written.write("x")
        assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 2, 3, 4]
        return 0

    assert looked_at(Made(get)).samples > 0


def test_nothing_stays_patched_after_a_sample_failed() -> None:
    data = Made(lambda place: 1 // (place - 9), slowly)
    before = builtins.open, io.open, os.read, np.load, Image.open, data.transform
    with pytest.raises(SampleFailed) as failed:
        looked_at(data, seconds=60)
    assert failed.value.index == 9
    assert (builtins.open, io.open, os.read, np.load, Image.open, data.transform) == before
    assert "lambda" in of_error(failed.value.error) and Path(__file__).name in of_error(failed.value.error)


def test_an_error_of_a_worker_is_told_by_its_own_line_and_not_by_torch() -> None:
    text = (
        "Caught KeyError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        f'  File "{torch.__file__}", line 54, in fetch\n    data = [...]\n'
        '  File "/home/me/data.py", line 11, in label_of\n    raise KeyError(name)\n'
        "KeyError: 'lost'\n"
    )
    assert of_text(text) == "KeyError: 'lost' (/home/me/data.py:11, in label_of)"
    stack = (
        f'Stack (most recent call first):\n  File "{threading.__file__}", line 5 in wait\n  File "/home/me/d.py", line 3 in get\n'
    )
    assert where(stack) == "/home/me/d.py:3, in get"


def test_the_sample_that_raises_is_found_among_those_of_a_batch() -> None:
    found = sample_of([1, 2], [0, 1, 7, 1])
    assert found is not None and found[0] == 7 and found[1].startswith("IndexError")
    assert sample_of([1, 2], [0, 1]) is None


@every_case(("size", "cut", "expected"), [(10, None, [10]), (10, 4, [4, 4, 2]), (100, 91, [50, 50]), (8, 8, [8])])
def test_batches_are_cut_into_pieces_that_are_alike(size: int, cut: int | None, expected: list[int]) -> None:
    batches = iter(Batches([list(range(size))], cut, whole=False))
    assert [len(next(batches)) for _ in expected] == expected


@every_case("made", ["json:nothing_there", "json:JSONDecodeError", "math:pi", "images/train"])
def test_what_is_no_loader_is_said_to_be_none(made: str) -> None:
    with pytest.raises(UsageError) as told:
        opened(made, None)
    assert told.value.fix


def test_memory_that_processes_share_counts_once() -> None:
    own = tree_memory(os.getpid())
    held = mmap.mmap(-1, 40 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # pages that nobody has had before
    held.write(bytes(1) * len(held))
    assert 35 << 20 < tree_memory(os.getpid()) - own < 60 << 20
    before = tree_memory(os.getpid())
    child = os.fork()
    if not child:
        time.sleep(30)
        os._exit(0)
    try:
        assert tree_memory(os.getpid()) - before < len(held) // 2
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert tree_memory(child) == 0
