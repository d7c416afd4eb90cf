"""A terminal stays a terminal, a pipe stays a pipe."""

from __future__ import annotations

import fcntl
import struct
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_run import HOLDFAST, PYTHON, Terminal, only_run, run

KINDS = "import os, sys; print([os.isatty(fd) for fd in range(3)], os.get_terminal_size(2), sep=';')"
RESIZED = """
import os, signal, time
signal.signal(signal.SIGWINCH, lambda *_: sizes.append(os.get_terminal_size(1).columns))
sizes = []
print('ready', flush=True)
while not sizes or sizes[-1] != 111: time.sleep(0.01)
print('now', sizes[-1], flush=True)
"""


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_a_terminal_stays_a_terminal_of_the_same_size(terminals: list[Terminal], tmp_path: Path) -> None:
    terminals.append(Terminal([*HOLDFAST, "run", PYTHON, "-c", KINDS], tmp_path))
    assert b"[True, True, True];os.terminal_size(columns=77, lines=33)\r\n" in terminals[0].rest()
    assert (only_run(tmp_path) / "train.log").read_bytes().endswith(b"lines=33)\n")


def test_only_the_stream_that_was_redirected_is_no_terminal(terminals: list[Terminal], tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        terminals.append(Terminal([*HOLDFAST, "run", PYTHON, "-c", KINDS], tmp_path, stdout=out))
    terminals[0].rest()
    assert (tmp_path / "out").read_text() == "[True, False, True];os.terminal_size(columns=77, lines=33)\n"


def test_without_a_terminal_there_is_none(tmp_path: Path) -> None:
    script = "import os; print([os.isatty(fd) for fd in range(3)])"
    assert run(tmp_path, PYTHON, "-c", script, stdin=subprocess.DEVNULL).stdout == "[False, False, False]\n"


def test_a_window_that_changes_its_size_is_followed(terminals: list[Terminal], tmp_path: Path) -> None:
    terminals.append(Terminal([*HOLDFAST, "run", PYTHON, "-c", RESIZED], tmp_path))
    terminals[0].until(b"ready")
    fcntl.ioctl(terminals[0].keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 111, 0, 0))
    terminals[0].until(b"now 111")


def test_what_is_typed_reaches_the_command(terminals: list[Terminal], tmp_path: Path) -> None:
    terminals.append(Terminal([*HOLDFAST, "run", PYTHON, "-c", "print('got', input('? '))"], tmp_path))
    terminals[0].until(b"? ")
    terminals[0].type(b"hello\n")
    terminals[0].until(b"got hello")


def test_colours_and_redrawn_lines_arrive_unchanged(terminals: list[Terminal], tmp_path: Path) -> None:
    drawn = b"\x1b[31mred\x1b[0m\r 50%\r100%\a\t\x00\xff."
    terminals.append(Terminal([*HOLDFAST, "run", PYTHON, "-c", f"import os; os.write(1, {drawn!r})"], tmp_path))
    assert terminals[0].rest().endswith(drawn)
    assert (only_run(tmp_path) / "train.log").read_bytes() == drawn
