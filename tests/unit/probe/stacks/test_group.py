from __future__ import annotations

from dataclasses import replace

from made_stacks import in_all_reduce, reading, thread, waiting_for_loader, worker

from holdfast.probe.stacks.frames import Frame
from holdfast.probe.stacks.group import group, is_idle

EVENT = Frame("Condition.wait", "/usr/lib/python3.11/threading.py", 327)
RUN = Frame("Thread.run", "/usr/lib/python3.11/threading.py", 982)


def test_ranks_in_the_same_place_are_one_group() -> None:
    groups = group([in_all_reduce(n) if n != 7 else reading(7) for n in range(64)])
    assert [one.title for one in groups] == ["63 ranks (0-6, 8-63)", "rank 7"]


def test_idle_workers_of_a_loader_are_one_group() -> None:
    busy = worker(1, Frame("read", "/job/data.py", 6))
    groups = group([waiting_for_loader(), worker(0), busy, worker(2)])
    assert [one.title for one in groups] == ["rank 0", "2 loader workers of rank 0 (0, 2)", "rank 0 loader worker 1"]


def test_the_member_with_native_frames_stands_for_its_group() -> None:
    plain, other = in_all_reduce(0), in_all_reduce(1)
    native = Frame("c10d::Work::wait", "libtorch_cpu.so", 0, "libtorch_cpu.so", native=True)
    rich = replace(other, threads=(replace(other.threads[0], frames=(native, *other.threads[0].frames)),))
    (found,) = group([plain, rich])
    assert found.first is rich and found.shown == rich.threads


def test_helper_threads_that_wait_are_folded_and_others_are_not() -> None:
    waits = thread(1, EVENT, Frame("beat", "/job/a.py", 3), RUN, name="beat", number=2)
    ours = thread(1, Frame("save", "/x/holdfast/inside/saver.py", 3), RUN, name="holdfast-saver", number=3, active=True)
    works = thread(1, Frame("beat", "/job/a.py", 4), RUN, name="beat", number=4, active=True)
    holds = thread(1, EVENT, RUN, name="odd", number=5, holds_gil=True)
    assert [is_idle(one) for one in (waits, ours, works, holds)] == [True, True, False, False]
    one = replace(in_all_reduce(0), threads=(*in_all_reduce(0).threads, waits, ours, works))
    (found,) = group([one])
    assert [t.name for t in found.idle] == ["beat", "holdfast-saver"] and len(found.shown) == 2
    (everything,) = group([one], all_threads=True)
    assert len(everything.shown) == 4 and not everything.idle
