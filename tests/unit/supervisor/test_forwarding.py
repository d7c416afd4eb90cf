from __future__ import annotations

import signal
import subprocess
import sys

import pytest

OLD_WAY = """
import os, signal, subprocess, sys, threading
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background of a shell ignore it
threading.Thread(target=threading.Event().wait, daemon=True).start()
from holdfast.supervisor.forwarding import Forwarding
signals = Forwarding(lambda: False)
assert not signals.waiting
victim = "import signal, time; signal.signal(signal.{name}, lambda *_: exit(9)); print('ready', flush=True); time.sleep(30)"
child = subprocess.Popen([sys.executable, "-c", victim])
signals.to(child.pid)
sys.exit(child.wait())
"""


def test_the_command_line_starts_no_thread_before_signals_are_blocked() -> None:
    code = "import os, holdfast.cli.run, holdfast.supervisor.watching; print(len(os.listdir('/proc/self/task')))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"1\n"


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_where_signals_cannot_be_waited_for_they_are_forwarded_all_the_same(name: str) -> None:
    words = [sys.executable, "-c", OLD_WAY.replace("{name}", name)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(getattr(signal, name))
        assert process.wait(20) == 9
