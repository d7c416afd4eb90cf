from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from holdfast.probe.stacks.own_dump import parse
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.stack_signal import own_stacks

TEXT = """\
Thread 0x0000ffff9bd6f1e0 [feeder] (most recent call first):
  File "/usr/lib/python3.13/threading.py", line 327 in wait
  File "/job/a b.py", line 3 in helper

Current thread 0x0000ffff9c8e2020 [python] (most recent call first):
  File "/job/train.py", line ??? in <listcomp>
  File "/job/train.py", line 9 in <module>
"""


def test_what_faulthandler_writes_becomes_threads_the_first_one_first() -> None:
    main, other = parse(TEXT, 77, runs=True)
    assert (main.name, main.thread, main.active) == ("MainThread", 77, True)
    assert [(f.func, f.line) for f in main.frames] == [("<listcomp>", 0), ("<module>", 9)]
    assert other.name == "feeder" and other.frames[1].file == "/job/a b.py" and not other.active


FORKS = """
import os, sys, time
from pathlib import Path
from holdfast.signals.stack_signal import answer_signal
answer_signal(Path(sys.argv[1]))
def first(): time.sleep(60)
def second(): time.sleep(60)
children = []
for way in (first, second):
    pid = os.fork()
    if not pid:
        way()
    children.append(pid)
time.sleep(0.2)
print(*children, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGRTMAX"), reason="this system has no real-time signals")
def test_forked_children_that_are_asked_at_once_answer_each_for_itself(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    with subprocess.Popen([sys.executable, "-c", FORKS, str(run.claim(0).path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        children = [int(word) for word in process.stdout.readline().split()]
        with ThreadPoolExecutor(2) as pool:
            texts = list(pool.map(lambda pid: own_stacks(run, pid, (process.pid,), seconds=10.0), children))
        for pid in (*children, process.pid):
            os.kill(pid, signal.SIGKILL)
    assert [parse(text or "", 1)[0].frames[0].func for text in texts] == ["first", "second"]


LISTENS = """
import signal, subprocess, sys, time
from pathlib import Path
from holdfast.signals.stack_signal import answer_signal, withdraw_if_taken
folder = Path(sys.argv[1])
if sys.argv[2] == "taken":
    for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
        signal.signal(number, lambda *_: print("mine", flush=True))
print(answer_signal(folder) is not None, flush=True)
fresh = subprocess.Popen(["sleep", "60"])
print(fresh.pid, flush=True)
if sys.argv[2] == "later":
    signal.signal(signal.SIGRTMAX - 4, print)
    withdraw_if_taken()
    print("withdrawn", flush=True)
def waits():
    time.sleep(60)
waits()
"""


@pytest.mark.skipif(not hasattr(signal, "SIGRTMAX"), reason="this system has no real-time signals")
def test_a_process_tells_its_stacks_and_a_program_that_does_not_listen_is_never_signalled(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    folder = run.claim(0).path
    words = [sys.executable, "-c", LISTENS, str(folder), "free"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "True\n"
        fresh = int(process.stdout.readline())
        seen = []
        while "waits" not in seen and len(seen) < 100:  # it may not have got there yet
            text = own_stacks(run, process.pid, seconds=10.0)
            seen.append(parse(text, process.pid)[0].frames[0].func if text else "")
        unasked = own_stacks(run, fresh, (process.pid,), seconds=0.2)
        lives = psutil.Process(fresh).status() != psutil.STATUS_ZOMBIE and process.poll() is None
        process.terminate()
        os.kill(fresh, signal.SIGKILL)
    assert seen[-1] == "waits" and unasked is None and lives


@pytest.mark.skipif(not hasattr(signal, "SIGRTMAX"), reason="this system has no real-time signals")
def test_a_handler_of_the_user_is_left_alone(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    words = [sys.executable, "-c", LISTENS, str(run.claim(0).path), "taken"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "False\n"
        os.kill(int(process.stdout.readline()), signal.SIGKILL)
        answer = own_stacks(run, process.pid, seconds=0.2)
        process.terminate()
    assert answer is None


@pytest.mark.skipif(not hasattr(signal, "SIGRTMAX"), reason="this system has no real-time signals")
def test_a_handler_that_the_user_sets_later_is_left_alone_too(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    words = [sys.executable, "-c", LISTENS, str(run.claim(0).path), "later"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "True\n"
        os.kill(int(process.stdout.readline()), signal.SIGKILL)
        assert process.stdout.readline() == "withdrawn\n"
        answer = own_stacks(run, process.pid, seconds=0.2)
        process.terminate()
    assert answer is None
