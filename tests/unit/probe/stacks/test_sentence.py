from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from every_case import every_case
from made_stacks import C10D, LOADER, fetching, in_all_reduce, rank, reading, thread, waiting_for_loader, worker

from holdfast.probe.stacks.frames import Frame, ProcessStacks, RankProgress
from holdfast.probe.stacks.sentence import explain


def late(*ranks: int, seconds: float = 30.0) -> list[RankProgress]:
    return [RankProgress(rank=one, step=120, before=120, seconds=seconds, usual=0.1) for one in ranks]


def test_of_sixty_four_ranks_the_one_that_does_not_come_is_named() -> None:
    stacks = [reading(7) if number == 7 else in_all_reduce(number) for number in range(64)]
    verdict = explain(stacks, state=late(*range(64)))
    assert verdict.code == "collective-stall" and verdict.rank == 7 and verdict.pid == 1007
    assert verdict.say.startswith(
        "63 ranks (0-6, 8-63) wait in all_reduce in average() (job/train.py:26), rank 7 is in read() of "
    )
    assert "/job/settings in wait_for_settings() (job/train.py:31)" in verdict.say
    assert verdict.say.endswith("No step for 30 s (the last was 120).")


def test_a_rank_that_has_ended_is_the_one_the_others_wait_for() -> None:
    gone = ProcessStacks(1001, "rank 1", 1, state="gone", problem="the process has ended", by="nobody")
    verdict = explain([in_all_reduce(0), gone])
    assert verdict.code == "collective-stall" and verdict.rank == 1 and "rank 1 has ended" in verdict.say


def test_ranks_in_different_collectives_are_told_apart() -> None:
    verdict = explain([in_all_reduce(0), in_all_reduce(1, "barrier"), in_all_reduce(2)])
    assert verdict.evidence["kind"] == "mismatch" and verdict.rank == 1
    assert "ranks 0 and 2 in all_reduce" in verdict.say and "rank 1 in barrier" in verdict.say


@every_case(("world", "words"), [(2, "does not get through"), (8, "on another machine")])
def test_when_all_ranks_here_wait_the_missing_one_is_looked_for_elsewhere(world: int, words: str) -> None:
    verdict = explain([in_all_reduce(0), in_all_reduce(1)], world=world)
    assert verdict.code == "collective-stall" and words in verdict.say


def test_ranks_that_have_not_met_yet_are_said_to_wait_for_each_other() -> None:
    joining = rank(0, Frame("init_process_group", C10D, 1700), Frame("<module>", "/job/train.py", 3))
    assert "the others are missing" in explain([joining]).say


def in_backward(number: int, **more: object) -> ProcessStacks:
    frames = (Frame("_engine_run_backward", "/venv/lib/python3.11/site-packages/torch/autograd/graph.py", 869),)
    return rank(number, *frames, Frame("main", "/job/train.py", 21), **more)


def test_without_native_frames_a_rank_that_waits_in_backward_waits_for_the_one_that_is_elsewhere() -> None:
    looks = [in_backward(0), reading(1)]
    verdict = explain(looks, again=looks, state=late(0, 1))
    assert verdict.code == "collective-stall" and verdict.evidence["missing"] == [1]
    assert "Rank 0 waits in the backward pass, where the gradients of all ranks meet, in main()" in verdict.say
    assert "rank 1 is in read() of /job/settings in wait_for_settings()" in verdict.say


@every_case(
    ("looks", "silent"),
    [
        ([in_backward(0), in_backward(1)], 30.0),
        ([in_backward(0), reading(1)], 0.6),
        ([in_backward(0, threads=(thread(1000, *in_backward(0).threads[0].frames, active=True),)), reading(1)], 30.0),
    ],
    ids=["all of them", "not late", "computes"],
)
def test_a_backward_pass_alone_is_no_collective(looks: list[ProcessStacks], silent: float) -> None:
    assert explain(looks, again=looks, state=late(0, 1, seconds=silent)).code != "collective-stall"


def test_the_worker_that_is_stuck_is_named_with_its_sample() -> None:
    stuck = worker(1, *fetching("13", Frame("Samples.read", "/job/data.py", 6)), call="open /nfs/images/13.png")
    verdict = explain([waiting_for_loader(), worker(0), stuck])
    assert verdict.code == "loader-stall" and verdict.pid == stuck.pid
    assert verdict.evidence["worker"] == 1 and verdict.evidence["sample"] == "sample 13"
    assert (
        "worker 1 (process 2001), at sample 13, is in open() of /nfs/images/13.png in Samples.read() (job/data.py:6)"
        in verdict.say
    )


def test_of_two_busy_workers_the_one_that_has_not_moved_is_named() -> None:
    before = [waiting_for_loader(), worker(0, Frame("load", "/job/data.py", 5)), worker(1, Frame("load", "/job/data.py", 6))]
    after = [waiting_for_loader(), worker(0, Frame("load", "/job/data.py", 8)), worker(1, Frame("load", "/job/data.py", 6))]
    assert explain(before, again=after).evidence["worker"] == 1


def test_without_the_sample_the_batch_is_named() -> None:
    verdict = explain([waiting_for_loader(), worker(0, Frame("collate", "/job/data.py", 3))])
    assert verdict.evidence["sample"] == "batch [12, 13]"


@every_case(
    ("workers", "words"),
    [
        ([], "all its workers have ended"),
        ([worker(0), worker(1)], "all 2 workers wait for work"),
        ([worker(0), replace(worker(1), state="stopped")], "worker 1 (process 2001) is stopped (SIGSTOP)"),
        (
            [worker(0), ProcessStacks(2001, "rank 0 loader worker 1", 0, worker=1, parent=1000, state="gone")],
            "worker 1 has ended",
        ),
    ],
)
def test_a_loader_without_a_busy_worker_says_what_became_of_them(workers: list[ProcessStacks], words: str) -> None:
    verdict = explain([waiting_for_loader(), *workers])
    assert verdict.code == "loader-stall" and words in verdict.say


def test_a_loader_without_workers_is_told_with_its_sample() -> None:
    inside = fetching("77", Frame("Samples.__getitem__", "/job/data.py", 12))
    one = rank(0, *inside, Frame("_SingleProcessDataLoaderIter._next_data", LOADER, 700), Frame("<module>", "/job/train.py", 9))
    verdict = explain([one])
    assert verdict.code == "loader-stall" and "(num_workers=0), at sample 77 and" in verdict.say


def test_steps_that_go_by_are_no_hang_whatever_the_stack_says() -> None:
    moving = [RankProgress(rank=0, step=130, before=120, seconds=0.1, usual=0.1, apart=0.5)]
    verdict = explain([waiting_for_loader(), worker(0)], state=moving)
    assert verdict.code == "moving" and verdict.say == "It is moving, not hung: step 120 to 130 within 0.5 s."


def test_a_step_that_is_not_due_yet_is_no_hang() -> None:
    slow = [RankProgress(rank=0, step=12, before=12, seconds=40.0, usual=30.0)]
    assert explain([rank(0, Frame("forward", "/job/model.py", 3))], state=slow).code == "moving"


def test_one_rank_that_stands_is_not_covered_by_another_that_moves() -> None:
    state = [RankProgress(rank=0, step=130, before=120, seconds=0.1, usual=0.1), *late(1)]
    assert explain([rank(0, Frame("f", "/job/a.py", 1)), reading(1)], state=state).code == "hang"


def test_a_computation_is_only_called_endless_when_a_step_is_overdue() -> None:
    runs = [rank(0, Frame("search", "/job/a.py", 4), threads=(thread(1000, Frame("search", "/job/a.py", 4), active=True),))]
    assert explain(runs, again=runs).code == "running"
    assert explain(runs, again=runs, state=late(0)).code == "hang"


@every_case(("call", "kind"), [("running", "loop"), ("futex", "wait")])
def test_a_loop_that_looks_idle_while_other_threads_run_is_in_no_system_call(call: str, kind: str) -> None:
    frame = Frame("search", "/job/a.py", 4)
    first, second = (rank(0, frame, threads=(thread(1000, frame, **more),)) for more in ({"call": call}, {"active": True}))
    assert explain([first], again=[second], state=late(0)).evidence["kind"] == kind


@every_case(
    ("frame", "code"),
    [
        (Frame("compile", "/venv/lib/python3.11/site-packages/torch/_inductor/compile_fx.py", 8), "busy"),
        (Frame("_save", "/venv/lib/python3.11/site-packages/torch/serialization.py", 8), "busy"),
        (Frame("_find_and_load", "<frozen importlib._bootstrap>", 8), "busy"),
        (Frame("Pdb.interaction", "/usr/lib/python3.11/pdb.py", 8), "paused"),
    ],
)
def test_what_is_known_to_take_long_is_not_called_a_hang(frame: Frame, code: str) -> None:
    assert explain([rank(0, frame, Frame("main", "/job/train.py", 9))], state=late(0)).code == code


def test_a_question_at_the_terminal_is_not_called_a_hang() -> None:
    asks = rank(0, threads=(thread(1000, Frame("main", "/job/train.py", 9), call="read /dev/pts/3"),))
    assert explain([asks], state=late(0)).code == "paused"


def test_nothing_that_could_be_read_says_why() -> None:
    refused = ProcessStacks(1000, "rank 0", 0, problem="it belongs to user anna", by="nobody")
    verdict = explain([refused])
    assert verdict.code == "unseen" and verdict.say == "Rank 0 could not be read: it belongs to user anna."
    assert explain([]).code == "unseen"


def test_a_rank_that_holds_up_the_others_is_told_with_those_who_wait() -> None:
    verdict = explain([waiting_for_loader(0), worker(0, Frame("read", "/job/data.py", 6)), in_all_reduce(1), in_all_reduce(2)])
    assert verdict.code == "loader-stall" and verdict.say.endswith("Ranks 1 and 2 wait for it in all_reduce.")
    stopped = explain([replace(reading(0), state="stopped"), in_all_reduce(1)])
    assert stopped.code == "stopped" and stopped.say.endswith("Rank 1 waits for it in all_reduce.")


def test_a_rank_that_could_not_be_read_is_told_with_its_reason() -> None:
    refused = ProcessStacks(1000, "rank 0", 0, problem="it belongs to user anna", by="nobody")
    assert explain([refused, worker(0)]).say == "Rank 0 could not be read: it belongs to user anna."


def test_of_ranks_in_no_collective_the_odd_one_is_named() -> None:
    those = [rank(n, Frame("wait_for_all", "/job/own.py", 3)) for n in range(3)]
    verdict = explain([*those, reading(3)], state=late(0, 1, 2, 3))
    assert verdict.code == "hang" and verdict.rank == 3
    assert verdict.say.startswith(
        "3 ranks (0-2) each: waits in wait_for_all() (job/own.py:3); rank 3 is in read() of /job/settings"
    )


@every_case(("doing", "code"), [("paused", "paused"), ("evaluating", "busy"), ("training", "hang")])
def test_what_the_process_announced_counts(doing: str, code: str) -> None:
    state = [replace(one, doing=doing, begun=1000.0) for one in late(0)]
    assert explain([reading(0)], state=state).code == code


def test_since_when_a_rank_waits_in_a_collective_is_told() -> None:
    state = [replace(one, doing="collective", begun=1000.0) for one in late(0, 1)]
    clock = time.strftime("%H:%M:%S", time.localtime(1000.0))
    assert (
        f"in all_reduce in average() (job/train.py:26) since {clock}, rank 1"
        in explain([in_all_reduce(0), reading(1)], state=state).say
    )


def test_a_thread_that_is_joined_and_waits_for_the_lock_of_who_joins_it_is_a_deadlock(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text(
        "def close(self):\n    with self.lock:\n        self.writer.join()\ndef write(self):\n    with self.lock:\n        pass\n"
    )
    joins = thread(1000, Frame("join", "/usr/lib/python3.11/threading.py", 1119), Frame("close", str(code), 3), call="futex")
    writes = thread(1000, Frame("write", str(code), 5), name="writer", number=1001, call="futex")
    verdict = explain([ProcessStacks(1000, "rank 0", 0, (joins, writes))], state=late(0))
    assert verdict.code == "hang" and verdict.evidence["kind"] == "deadlock"
    assert "thread writer waits for lock `self.lock`" in verdict.say and "held by the main thread" in verdict.say


def test_a_lock_in_compiled_code_is_told_from_a_queue_that_stays_empty(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text("read(sensor)\nitem = items.get()\n")
    in_c, empty = (explain([rank(0, Frame("<module>", str(code), line))], state=late(0)) for line in (1, 2))
    assert in_c.evidence["lock_in_c"] and "lock" in in_c.say
    assert "lock_in_c" not in empty.evidence
