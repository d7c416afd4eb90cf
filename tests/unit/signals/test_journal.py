from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.signals.journal import Journal

MANY = """
import sys
from pathlib import Path
from holdfast.signals.journal import Journal
for number in range(200):
    Journal(Path(sys.argv[1])).write("finding", writer=sys.argv[2], number=number, text="x" * 500)
"""


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


def test_entries_come_back_in_order_with_their_time(journal: Journal) -> None:
    journal.write("finding", code="loss-spike", step=7)
    journal.write("action", code="roll-back")
    first, second = journal
    assert (first["kind"], first["code"], first["step"], second["kind"]) == ("finding", "loss-spike", 7, "action")
    assert first["time"] > 1.7e9


def test_no_journal_is_an_empty_journal(journal: Journal) -> None:
    assert list(journal) == []


@pytest.mark.parametrize("text", ["line\nbreak", "separator \u2028 next \x85 \x0b", "ü 🪢", "lone \ud800", Path("/a/path")])
def test_any_text_stays_one_entry(journal: Journal, text: object) -> None:
    journal.write("finding", text=text)
    journal.write("finding", text="after")
    entries = list(journal)
    assert len(entries) == 2
    assert entries[0]["text"] == str(text).replace("\ud800", "?")


def test_a_line_cut_off_by_a_crash_loses_only_itself(journal: Journal) -> None:
    journal.write("finding", number=1)
    with journal.path.open("ab") as file:
        file.write(b'{"time": 1.0, "kind": "find')
    journal.write("finding", number=3)
    journal.write("finding", number=4)
    assert [entry["number"] for entry in journal] == [1, 3, 4]


@pytest.mark.parametrize("line", [b"[1, 2]\n", b"\n", b"not json\n", b"\xff\xfe\n", b"null\n"])
def test_a_line_that_is_no_entry_is_passed_over(journal: Journal, line: bytes) -> None:
    journal.path.write_bytes(line)
    journal.write("finding", number=1)
    assert [entry["number"] for entry in journal] == [1]


def test_a_journal_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        Journal(tmp_path / "gone" / "journal.jsonl").write("finding")


def test_processes_that_write_at_once_never_mix_their_lines(journal: Journal) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", MANY, str(journal.path), name]) for name in "abc"]
    assert [writer.wait(600) for writer in writers] == [0, 0, 0]
    entries = list(journal)
    for name in "abc":
        assert [entry["number"] for entry in entries if entry["writer"] == name] == list(range(200))
