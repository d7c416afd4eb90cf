"""A scan: all cores, what did not change is not looked at again, Ctrl-C loses nothing, a decoder that dies is survived."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
from pathlib import Path

import made_data as made
import pytest

from holdfast.data import scan as workers
from holdfast.data.cache import Cache
from holdfast.data.examine import Examination
from holdfast.data.formats.yolo import read_label
from holdfast.data.problem import Fault
from holdfast.data.samples import Channel, Entry, Facts, MaskFacts, facts_from
from holdfast.data.validate import Settings, validate

VICTIM = Path(__file__).parents[2] / "victims" / "counts_of_a_scan.py"


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough samples that processes are started."""
    folder = tmp_path_factory.mktemp("many")
    made.yolo(folder)
    for number in range(160):
        made.write(folder / f"images/train/more{number}.jpg", made.encoded(1000 + number, quality=60))
        made.write(folder / f"labels/train/more{number}.txt", "".join(made.yolo_line(*box) for box in made.boxes(number)))
    return folder


def looked(folder: Path, cache: Path | None) -> tuple[list[int], object]:
    """Which numbers of done samples were reported, and the report."""
    told: list[int] = []
    report = validate(folder, Settings(jobs=1, cache=cache), lambda done, total: told.append(done))
    return told, report


def test_many_processes_find_what_one_finds(many: Path, tmp_path: Path) -> None:
    bad = many / "images/train/more7.jpg"
    sound = bad.read_bytes()
    bad.write_bytes(sound[:400])
    try:
        reports = [validate(many, Settings(jobs=jobs)).as_row() for jobs in (1, 2)]
    finally:
        bad.write_bytes(sound)
    assert reports[0]["problems"] == reports[1]["problems"] and reports[0]["problems"][0]["code"] == "image-truncated"


def test_a_second_run_looks_at_nothing_and_says_the_same(many: Path, tmp_path: Path) -> None:
    told, first = looked(many, tmp_path)
    again, second = looked(many, tmp_path)
    assert len(told) == 206 and again == []
    assert second.remembered and not first.remembered
    assert second.problems == first.problems and second.splits == first.splits


def test_only_what_changed_is_looked_at_again(many: Path, tmp_path: Path) -> None:
    looked(many, tmp_path)
    label = many / "labels/train/more3.txt"
    sound = label.read_text()
    label.write_text(made.yolo_line(0, 10, 10, 10, 10))
    try:
        told, report = looked(many, tmp_path)
    finally:
        label.write_text(sound)
    assert len(told) == 1
    assert [problem.code for problem in report.problems] == ["box-zero-area"]


def test_ctrl_c_keeps_what_was_done(many: Path, tmp_path: Path) -> None:
    answer = subprocess.run([sys.executable, str(VICTIM), str(many), str(tmp_path)], capture_output=True, text=True, timeout=600)
    assert answer.stdout.strip() == "interrupted", answer.stderr
    told, report = looked(many, tmp_path)
    assert len(told) <= 106, "the second run had to look at all of them again"  # none at all where the workers were ahead
    assert report.samples == 206 and report.problems == []


def dies_on_some(root: Path, entry: Entry) -> object:
    if entry.image.endswith("dies.jpg"):
        os._exit(11)
    return read_label(root, entry)


def test_a_decoder_that_dies_is_survived_and_its_file_named(many: Path, tmp_path: Path) -> None:
    made.write(tmp_path / "dies.jpg", made.encoded(1))
    for number in range(40):
        made.write(tmp_path / f"{number}.jpg", made.encoded(number))
    entries = [Entry("all", f"{number}.jpg") for number in range(40)]
    entries.insert(20, Entry("all", "dies.jpg"))
    how = Examination(root=tmp_path, read_label=dies_on_some, classes=None, has_boxes=False)
    done = dict(workers.examined_by_many(how, enumerate(entries), 2))
    assert sorted(done) == list(range(41))
    assert [fault.detail for fault in done[20].faults] == ["the decoder crashed on it (exit 11)"]
    assert all(not done[number].faults for number in range(41) if number != 20)


def test_facts_come_back_from_the_cache_as_they_were(tmp_path: Path) -> None:
    facts = Facts(
        4, 3, 1, (1.5,), (0.5,), (1 << 64) - 1, "00ff", 0.7, "", ("cat", "cat", 7), (0.5,) * 12,
        (MaskFacts("m.png", 4, 3, "L", (0, 255), True, (9, 3), "00"),),
        (Channel("grey", 256, (0, 7), (12, 3)),), (Fault("box-outside", "a.txt", 3, "…"),),
    )  # fmt: skip
    with Cache(tmp_path, "key") as cache:
        cache.keep_facts([("train/a", "stamp", facts)])
    with Cache(tmp_path, "key") as cache:
        assert cache.stamps() == {"train/a": "stamp"}
        assert facts_from(cache.facts_of("train/a")) == facts


def test_a_cache_that_cannot_be_used_is_done_without(many: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert looked(many, tmp_path / "file")[1].problems == []
    looked(many, tmp_path)
    damaged = next(tmp_path.glob("*.sqlite"))
    damaged.write_bytes(b"no database" * 500)
    for rest in tmp_path.glob("*.sqlite-*"):
        rest.unlink()
    assert looked(many, tmp_path)[1].problems == []


def test_the_cache_holds_plain_json_and_no_pickle(many: Path, tmp_path: Path) -> None:
    looked(many, tmp_path)
    with Cache(tmp_path / "other", "x") as cache:
        assert cache.report("none") is None
    import sqlite3

    (path,) = (one for one in tmp_path.glob("*.sqlite"))
    rows = sqlite3.connect(path).execute("SELECT content FROM facts").fetchall()
    assert len(rows) == 206 and all(isinstance(json.loads(content), list) for (content,) in rows)


SCRIPT = """
import threading
from pathlib import Path
from holdfast.data.validate import Settings, validate
print("started")
if {thread}:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
print(validate(Path({folder!r}), Settings(jobs=2)).samples)
"""


@pytest.mark.parametrize("thread", [False, True], ids=["alone, so forked", "beside a thread, so spawned"])
@pytest.mark.parametrize("pipe", [False, True], ids=["file", "pipe"])
def test_a_script_without_a_guard_can_validate_and_runs_once(many: Path, tmp_path: Path, thread: bool, pipe: bool) -> None:
    script = SCRIPT.format(thread=thread, folder=str(many))
    made.write(tmp_path / "script.py", script)
    command = [sys.executable, "-" if pipe else str(tmp_path / "script.py")]
    answer = subprocess.run(command, input=script if pipe else None, capture_output=True, text=True, timeout=600)
    assert (answer.stdout.split(), answer.stderr) == (["started", "206"], "")


def workers_of(process: int) -> list[int]:
    """The processes that a process started, by their numbers."""
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("thread", [False, True], ids=["forked", "spawned"])
def test_a_killed_validation_leaves_no_process_behind(many: Path, tmp_path: Path, thread: bool) -> None:
    """The pipes of the workers close: each of them ends by itself, however many hold them."""
    script = SCRIPT.format(thread=thread, folder=str(many)).replace(
        ").samples", ", lambda done, all: print(done) or input()).samples"
    )
    made.write(tmp_path / "script.py", script)
    command = [sys.executable, "-u", str(tmp_path / "script.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().strip() for _ in range(2)] == ["started", "1"]
        ends = [os.pidfd_open(number) for number in workers_of(process.pid)]
        process.kill()
    assert ends
    for end in ends:
        assert select.select([end], [], [], 60)[0], "a worker outlived the validation"
        os.close(end)


def test_a_class_that_is_added_to_the_list_is_no_longer_out_of_range(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    made.yolo(folder)
    described = folder / "data.yaml"
    whole = described.read_text()
    described.write_text(re.sub(r"names:.*", "names: [only]", whole, flags=re.DOTALL).replace("nc:", "# nc:"))
    codes = {one.code for one in validate(folder, Settings(jobs=1, cache=tmp_path / "cache")).problems}
    assert "class-out-of-range" in codes
    described.write_text(whole)
    assert validate(folder, Settings(jobs=1, cache=tmp_path / "cache")).problems == []
