from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast.signals import strings as strings_module
from holdfast.signals.schema import MISSING_INT
from holdfast.signals.strings import FILE_NAME, StringWriter, read_strings

ODD = ["layer.0.weight", "", "Schicht ü", "two\nlines", 'quote"', "\u2028", "\ud800", "emoji 🪢"]


@pytest.fixture
def troubles() -> list[str]:
    return []


@pytest.fixture
def writer(tmp_path: Path, troubles: list[str]) -> StringWriter:
    return StringWriter(tmp_path, on_trouble=lambda what, error: troubles.append(what))


def test_every_name_comes_back_by_its_code(writer: StringWriter, tmp_path: Path) -> None:
    codes = [writer.code(text) for text in ODD]
    assert [read_strings(tmp_path)[code] for code in codes] == ODD


def test_a_name_is_written_down_once(writer: StringWriter, tmp_path: Path) -> None:
    assert writer.code("a") == writer.code("a") == 0
    assert read_strings(tmp_path) == ["a"]


def test_a_name_is_readable_as_soon_as_its_code_is_known(writer: StringWriter, tmp_path: Path) -> None:
    for number in range(100):
        code = writer.code(f"name {number}")
        assert read_strings(tmp_path)[code] == f"name {number}"


def test_no_dictionary_is_an_empty_dictionary(tmp_path: Path) -> None:
    assert read_strings(tmp_path) == []


def test_a_torn_last_name_is_left_out(writer: StringWriter, tmp_path: Path) -> None:
    writer.code("whole")
    writer.code("torn")
    file = tmp_path / FILE_NAME
    file.write_bytes(file.read_bytes()[:-3])
    assert read_strings(tmp_path) == ["whole"]


def test_a_damaged_name_does_not_shift_the_others(writer: StringWriter, tmp_path: Path) -> None:
    for text in ("first", "second", "third"):
        writer.code(text)
    file = tmp_path / FILE_NAME
    file.write_bytes(file.read_bytes().replace(b'"second"', b"\xff\x00broken"))
    assert read_strings(tmp_path) == ["first", "(unreadable)", "third"]


def test_a_folder_that_is_gone_makes_names_missing_and_is_reported(tmp_path: Path, troubles: list[str]) -> None:
    folder = tmp_path / "gone"
    writer = StringWriter(folder, on_trouble=lambda what, error: troubles.append(what))
    assert writer.code("lost") == MISSING_INT
    assert troubles == ["the dictionary of names"]
    folder.mkdir()
    assert writer.code("lost") == 0
    assert read_strings(folder) == ["lost"]


def test_endless_new_names_stay_bounded(writer: StringWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strings_module, "_AT_MOST", 10)
    codes = {writer.code(f"request {number}") for number in range(1000)}
    assert len(codes) == 11
    assert read_strings(tmp_path)[max(codes)] == "(too many names)"


def test_threads_that_name_things_at_once_never_swap_their_names(writer: StringWriter, tmp_path: Path) -> None:
    given: dict[str, int] = {}
    start = threading.Barrier(4)

    def name_things(thread: int) -> None:
        start.wait()
        given.update({text: writer.code(text) for text in [f"{thread}.{number}" for number in range(300)] + ["shared"]})

    threads = [threading.Thread(target=name_things, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = read_strings(tmp_path)
    assert [text for text, code in given.items() if written[code] != text] == []
    assert len(written) == 4 * 300 + 1
