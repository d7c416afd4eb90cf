from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from holdfast.signals.start_ticks import start_ticks

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")


def test_it_is_what_others_read_there() -> None:
    begun = psutil.Process().create_time() - psutil.boot_time()
    assert start_ticks(os.getpid()) == pytest.approx(begun * os.sysconf("SC_CLK_TCK"), abs=1)


def test_a_name_with_brackets_and_spaces_does_not_shift_the_fields(tmp_path: Path) -> None:
    odd = tmp_path / "a) R 1 (b c"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([odd, "60"]) as process:
        name = Path(f"/proc/{process.pid}/stat").read_text()
        found = start_ticks(process.pid)
        begun = psutil.Process(process.pid).create_time() - psutil.boot_time()
        process.kill()
    assert "a) R 1 (b c" in name
    assert found == pytest.approx(begun * os.sysconf("SC_CLK_TCK"), abs=1)


def test_who_is_not_there_has_none() -> None:
    assert start_ticks(4194301) is None
