"""A terminal stays a terminal, a pipe stays a pipe."""

from __future__ import annotations

import fcntl
import struct
import subprocess
import termios
from pathlib import Path

from holdfast_run import HOLDFAST, PYTHON, Sit, only_run, run

KINDS = "import os, sys; print([os.isatty(fd) for fd in range(3)], os.get_terminal_size(2), sep=';')"
RESIZED = """
import os, signal, time
signal.signal(signal.SIGWINCH, lambda *_: sizes.append(os.get_terminal_size(1).columns))
sizes = []
print('ready', flush=True)
while not sizes or sizes[-1] != 111: time.sleep(0.01)
print('now', sizes[-1], flush=True)
"""


def test_a_terminal_stays_a_terminal_of_the_same_size(sit: Sit, tmp_path: Path) -> None:
    terminal = sit([*HOLDFAST, "run", PYTHON, "-c", KINDS])
    assert b"[True, True, True];os.terminal_size(columns=77, lines=33)\r\n" in terminal.rest()
    assert (only_run(tmp_path) / "train.log").read_bytes().endswith(b"lines=33)\n")


def test_only_the_stream_that_was_redirected_is_no_terminal(sit: Sit, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        terminal = sit([*HOLDFAST, "run", PYTHON, "-c", KINDS], stdout=out)
    terminal.rest()
    assert (tmp_path / "out").read_text() == "[True, False, True];os.terminal_size(columns=77, lines=33)\n"


def test_without_a_terminal_there_is_none(tmp_path: Path) -> None:
    script = "import os; print([os.isatty(fd) for fd in range(3)])"
    assert run(tmp_path, PYTHON, "-c", script, stdin=subprocess.DEVNULL).stdout == "[False, False, False]\n"


def test_a_window_that_changes_its_size_is_followed(sit: Sit) -> None:
    terminal = sit([*HOLDFAST, "run", PYTHON, "-c", RESIZED])
    terminal.until(b"ready")
    fcntl.ioctl(terminal.keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 111, 0, 0))
    terminal.until(b"now 111")


def test_what_is_typed_reaches_the_command(sit: Sit) -> None:
    terminal = sit([*HOLDFAST, "run", PYTHON, "-c", "print('got', input('? '))"])
    terminal.until(b"? ")
    terminal.type(b"hello\n")
    terminal.until(b"got hello")


def test_colours_and_redrawn_lines_arrive_unchanged(sit: Sit, tmp_path: Path) -> None:
    drawn = b"\x1b[31mred\x1b[0m\r 50%\r100%\a\t\x00\xff."
    terminal = sit([*HOLDFAST, "run", PYTHON, "-c", f"import os; os.write(1, {drawn!r})"])
    assert terminal.rest().endswith(drawn)
    assert (only_run(tmp_path) / "train.log").read_bytes() == drawn
