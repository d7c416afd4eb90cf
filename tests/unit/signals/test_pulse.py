"""The pulse of a rank: written through memory, read by anyone."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from holdfast.inside.observers.heartbeat import Heartbeat
from holdfast.signals.pulse import COLLECTIVE, EVALUATING, LOADING, NAME, SAVING, parse, read_file, read_pulse, starting
from holdfast.signals.run_folder import Recording, RunFolder


def test_what_the_training_does_is_read_from_outside(tmp_path: Path) -> None:
    pulse = Heartbeat()
    pulse.show_in(tmp_path)
    pulse.drawing()
    seen = read_pulse(Recording(0, 0, tmp_path))
    assert seen is not None and (seen.phase, seen.pid) == ("drawing", os.getpid())
    pulse.drawn()
    pulse.stepped(7)
    after = read_file(tmp_path / NAME)
    assert after is not None and (after.phase, after.steps) == ("training", 7) and after.beats > seen.beats


def test_phases_end_where_they_began(tmp_path: Path) -> None:
    pulse = Heartbeat()
    pulse.show_in(tmp_path)
    with pulse.during(EVALUATING):
        with pulse.during(SAVING):
            assert (now := read_file(tmp_path / NAME)) is not None and now.phase == "saving" and now.since > 0
        pulse.drawing()  # an evaluation draws batches, and stays one
        assert (now := read_file(tmp_path / NAME)) is not None and now.phase == "evaluating"
    with pulse.during(COLLECTIVE):
        pass
    assert (now := read_file(tmp_path / NAME)) is not None and now.phase == "training"


def test_what_another_thread_loads_or_saves_is_no_phase_of_the_training(tmp_path: Path) -> None:
    pulse = Heartbeat()
    pulse.show_in(tmp_path)
    before = pulse.enter(SAVING)
    other: list[int] = []
    beside = threading.Thread(target=lambda: other.append(pulse.enter(LOADING)))
    beside.start()
    beside.join()
    pulse.leave(before)
    threading.Thread(target=lambda: pulse.leave(other[0])).start()
    assert (now := read_file(tmp_path / NAME)) is not None and now.phase == "training"


def test_the_longest_evaluation_is_kept(tmp_path: Path) -> None:
    pulse = Heartbeat()
    pulse.show_in(tmp_path)
    pulse.evaluation_begins()
    pulse.seconds[5] -= 30.0
    pulse.evaluation_ends()
    pulse.evaluation_begins()
    pulse.evaluation_ends()
    now = read_file(tmp_path / NAME)
    assert now is not None and 30 <= now.longest_evaluation < 40 and now.phase == "training"


def test_a_process_that_has_not_stepped_yet_is_listed_and_moves_to_its_training(tmp_path: Path) -> None:
    run, pulse = RunFolder(tmp_path), Heartbeat()
    pulse.drawing()
    pulse.show_start(run)
    assert [(one.pid, one.phase) for one in starting(run)] == [(os.getpid(), "drawing")]
    (tmp_path / "rank-0").mkdir()
    pulse.show_in(tmp_path / "rank-0")
    pulse.beat()
    assert starting(run) == []
    assert (now := read_file(tmp_path / "rank-0" / NAME)) is not None and now.phase == "training"


def test_the_next_training_of_a_process_does_not_begin_with_the_steps_of_the_one_before(tmp_path: Path) -> None:
    pulse = Heartbeat()
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        pulse.show_in(tmp_path / name)
        assert (now := read_file(tmp_path / name / NAME)) is not None and now.steps == 0
        pulse.stepped(300)


def test_a_forked_child_leaves_the_parents_pulse_alone(tmp_path: Path) -> None:
    pulse = Heartbeat()
    pulse.show_in(tmp_path)
    pulse.stepped(3)
    pulse.after_fork()
    pulse.stepped(99)
    assert (now := read_file(tmp_path / NAME)) is not None and now.steps == 3


def test_what_is_no_pulse_is_none(tmp_path: Path) -> None:
    assert parse(b"") is None and parse(bytes(64)) is None and read_file(tmp_path / "nothing") is None
