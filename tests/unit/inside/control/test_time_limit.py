from __future__ import annotations

import subprocess
import sys
import threading
import time

from holdfast.inside.control.evaluate import StoppableCode, evaluate, read_code
from holdfast.inside.control.names import Names


def nothing(*_: object) -> None:
    return None


def test_a_stop_that_comes_as_the_code_ends_never_reaches_what_runs_after_it() -> None:
    names, code = Names(nothing, nothing), read_code("sum(range(300)) + sum(range(300))")
    stopped = 0
    for delay in range(600):
        stoppable, ready = StoppableCode(), threading.Event()

        def stop(stoppable: StoppableCode = stoppable, ready: threading.Event = ready, until: int = delay % 60) -> None:
            ready.set()
            for _ in range(until * 4):
                pass
            stoppable.stop()

        other = threading.Thread(target=stop)
        other.start()
        ready.wait()
        answer = evaluate(code, names, stoppable)
        for _ in range(100):  # an exception that is still under way would be raised here
            pass
        other.join()
        for _ in range(100):
            pass
        stopped += stoppable.stopped
        assert answer["ok"] != stoppable.stopped
    assert 0 < stopped < 600 or stopped == 0  # how often it met depends on the machine; that it does no harm does not


def test_code_that_catches_everything_is_still_answered() -> None:
    stoppable = StoppableCode()
    code = read_code("import time\ntry:\n    while True: pass\nexcept BaseException: caught = True\ncaught")
    threading.Timer(0.1, stoppable.stop).start()
    answer = evaluate(code, Names(nothing, nothing), stoppable)
    assert not answer["ok"] and "too long" in answer["error"]
    time.sleep(0.02)


PROFILED = """
import sys, threading
from holdfast.inside.control.evaluate import evaluate, read_code
from holdfast.inside.control.names import Names
from holdfast.inside.control.evaluate import StoppableCode
stoppable = StoppableCode()
threading.Timer(0.1, stoppable.stop).start()
answer = evaluate(read_code("while True: pass"), Names(print, print), stoppable)
sys.setprofile(lambda *event: None)
(lambda: None)()
sys.setprofile(None)
print(answer["ok"])
"""


def test_a_training_can_be_profiled_after_code_was_stopped_in_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROFILED], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split()[-1:] == ["False"]
