from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from every_case import every_case

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


@every_case("name", ["SIGTERM", "SIGINT", "SIGUSR1"])
def test_where_signals_cannot_be_waited_for_they_are_forwarded_all_the_same(name: str) -> None:
    words = [sys.executable, "-c", OLD_WAY.replace("{name}", name)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(getattr(signal, name))
        assert process.wait(600) == 9


BETWEEN = """
import os, signal, subprocess, sys, threading, time
from holdfast.supervisor.forwarding import Forwarding
signals = Forwarding(lambda: False)
assert signals.waiting
first = subprocess.Popen([sys.executable, "-c", "pass"])
signals.to(first.pid)
first.wait()
signals.command_ended()
for name in (signal.SIGHUP, signal.SIGUSR1):
    os.kill(os.getpid(), name)
assert not signals.hurry.wait(0.5), "a terminal that goes away does not keep it from being started again"
os.kill(os.getpid(), signal.SIGTERM)
assert signals.hurry.wait(600) and signals.requested == signal.SIGTERM
second = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"], preexec_fn=lambda: signal.pthread_sigmask(
    signal.SIG_SETMASK, signals.child_mask))
signals.to(second.pid)
sys.exit(-second.wait())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="signals are waited for on Linux only")
def test_between_two_attempts_only_a_signal_to_end_counts_and_it_reaches_the_next_one() -> None:
    done = subprocess.run([sys.executable, "-c", BETWEEN], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == signal.SIGTERM, done.stderr
