"""A terminal stays a terminal, a pipe stays a pipe."""

from __future__ import annotations

import fcntl
import struct
import subprocess
import termios
from pathlib import Path

from holdfast_run import HOLDFAST, PYTHON, Sit, only_run, run

KINDS = "import os, sys; print([os.isatty(fd) for fd in range(3)], os.get_terminal_size(2), sep=';')"
DRAWN = b"\x1b[31mred\x1b[0m\r 50%\r100%\a\t\x00\xff."
INTERACTIVE = f"""
import os, signal, sys, time
signal.signal(signal.SIGWINCH, lambda *_: sizes.append(os.get_terminal_size(1).columns))
sizes = []
print([os.isatty(fd) for fd in range(3)], os.get_terminal_size(2), sep=';', flush=True)
while 111 not in sizes: time.sleep(0.01)  # one call of the handler may interrupt another, and append first
print('now', max(sizes), flush=True)
print('got', input('? '), flush=True)
os.write(1, {DRAWN!r})
"""


def test_a_terminal_stays_a_terminal_its_size_is_followed_and_what_is_typed_and_drawn_arrives(sit: Sit, tmp_path: Path) -> None:
    terminal = sit([*HOLDFAST, "run", PYTHON, "-c", INTERACTIVE])
    terminal.until(b"[True, True, True];os.terminal_size(columns=77, lines=33)\r\n")
    fcntl.ioctl(terminal.keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 111, 0, 0))
    terminal.until(b"now 111")
    terminal.until(b"? ")
    terminal.type(b"hello\n")
    terminal.until(b"got hello")
    assert terminal.rest().endswith(DRAWN), "colours and redrawn lines are unchanged"
    log = (only_run(tmp_path) / "train.log").read_bytes()
    assert b"lines=33)\nnow 111\n" in log and log.endswith(b"got hello\n" + DRAWN)


def test_only_the_stream_that_was_redirected_is_no_terminal(sit: Sit, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        terminal = sit([*HOLDFAST, "run", PYTHON, "-c", KINDS], stdout=out)
    terminal.rest()
    assert (tmp_path / "out").read_text() == "[True, False, True];os.terminal_size(columns=77, lines=33)\n"


def test_without_a_terminal_there_is_none(tmp_path: Path) -> None:
    script = "import os; print([os.isatty(fd) for fd in range(3)])"
    assert run(tmp_path, PYTHON, "-c", script, stdin=subprocess.DEVNULL).stdout == "[False, False, False]\n"
