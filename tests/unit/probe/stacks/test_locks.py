from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_stacks import thread

from holdfast.probe.stacks.frames import Frame, ProcessStacks, Thread
from holdfast.probe.stacks.locks import circle, waiting_for, waits

CODE = """\
def writer(self):
    with self.lock:
        flush(self)

def flush(self):
    self.files.acquire()
    self.write()

def reader(self):
    with self.files, open("x") as file:
        self.read(file)
        with self.lock:
            pass

def done(self):
    self.lock.acquire()
    self.lock.release()
    self.sleep()
"""


@pytest.fixture
def code(tmp_path: Path) -> str:
    path = tmp_path / "code.py"
    path.write_text(CODE)
    return str(path)


def at(code: str, number: int, *places: tuple[str, int], call: str | None = "futex") -> Thread:
    return thread(1, *(Frame(func, code, line) for func, line in places), number=number, name=f"t{number}", call=call)


def test_a_circle_goes_through_with_blocks_and_acquire_calls(code: str) -> None:
    one = at(code, 10, ("flush", 6), ("writer", 3))
    other = at(code, 11, ("reader", 12))
    found = waits(ProcessStacks(1, "rank 0", 0, (one, other)))
    assert [(w.lock, w.holder and w.holder.name) for w in found] == [("self.files", "t11"), ("self.lock", "t10")]
    assert [w.held_at and w.held_at.line for w in found] == [10, 2]
    assert len(circle(found)) == 2


def test_a_lock_that_was_given_back_is_not_held(code: str) -> None:
    waiter, idle = at(code, 10, ("writer", 2)), at(code, 11, ("done", 18))
    (found,) = waits(ProcessStacks(1, "rank 0", 0, (waiter, idle)))
    assert found.holder is None and not circle([found])


def test_a_lock_that_is_taken_twice_is_held_by_the_waiter(code: str) -> None:
    twice = at(code, 10, ("writer", 2), ("writer", 3))
    (found,) = waits(ProcessStacks(1, "rank 0", 0, (twice,)))
    assert found.holder is twice


def test_a_thread_that_runs_or_reads_waits_for_no_lock(code: str) -> None:
    assert waiting_for(at(code, 10, ("reader", 10), call="read /x")) is None
    assert waiting_for(at(code, 10, ("writer", 3))) is None
    assert waiting_for(at("/not/there.py", 10, ("writer", 2))) is None


def test_native_frames_tell_a_wait_where_the_source_is_not_here() -> None:
    native = Frame("lock_PyThread_acquire_lock", "libpython3.11.so", 0, "libpython3.11.so", native=True)
    one = thread(1, native, Frame("writer", "/not/there.py", 2))
    assert waiting_for(one) == ("a lock", Frame("writer", "/not/there.py", 2))


def test_a_wait_that_one_look_missed_is_known_from_the_look_before(code: str) -> None:
    one, other = at(code, 10, ("flush", 6), ("writer", 3)), at(code, 11, ("reader", 12))
    awake = replace(other, active=True, call=None)
    before = ProcessStacks(1, "rank 0", 0, (one, other))
    now = ProcessStacks(1, "rank 0", 0, (one, awake))
    assert len(circle(waits(now))) == 0 and len(circle(waits(now, before))) == 2
