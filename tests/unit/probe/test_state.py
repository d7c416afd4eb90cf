from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.probe.compact import compact
from holdfast.probe.glance import look
from holdfast.probe.state import read_state
from holdfast.signals.run_folder import RunFolder

WRITER = """
import os, sys, time; from pathlib import Path
from holdfast.signals.recorder import Recorder; from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
run = RunFolder.create(Path(sys.argv[1]), 'run', pid=os.getpid(), started=time.time())
steps = Recorder.start(run, 0).table('steps')
names = TABLES['steps'].column_names
for step in range(5):
    given = {'step': step, 'time': time.time(), 'loss': 0.5, 'step_seconds': 0.1}
    steps.append([given.get(c.name, c.kind.missing) for c in TABLES['steps'].columns])
print('ready', flush=True); time.sleep(60)
"""


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def train(recorder: Any, row: Any, count: int, *, start: int = 0, until: float | None = None, **values: Any) -> None:
    """Steps of 0.1 s, the last one ending now."""
    end = time.time() if until is None else until
    for step in range(start, start + count):
        at = end - 0.1 * (start + count - 1 - step)
        given = {"loss": 0.5, "step_seconds": 0.1, "data_seconds": 0.02, "holdfast_seconds": 0.0005} | values
        recorder.table("steps").append(row("steps", step=step, time=at, **given))


def test_a_running_rank_shows_where_it_is_and_how_fast(record: Any, row: Any) -> None:
    recorder = record(command=["python", "train.py"])
    train(recorder, row, 60, host_rss=1000, epoch=2, lr=0.1, grad_norm=3.0)
    state = read_state(recorder.run)
    (rank,) = state.ranks
    assert (state.alive, state.health, state.command) == (True, "healthy", ["python", "train.py"])
    assert (rank.rank, rank.pid, rank.step, rank.epoch, rank.loss) == (0, os.getpid(), 59, 2, 0.5)
    assert rank.rate == pytest.approx(10, rel=1e-3)
    assert rank.data_share == pytest.approx(0.2) and rank.budget == pytest.approx(0.005)
    assert rank.age is not None and rank.age < 2
    assert (rank.host_memory, rank.gpu_memory) == (1000, None)
    json.dumps(state.as_dict())


def test_figures_are_of_the_last_steps_and_not_of_the_whole_run(record: Any, row: Any) -> None:
    recorder = record()
    train(recorder, row, 100, data_seconds=0.1)
    train(recorder, row, 50, start=100, data_seconds=0.0)
    assert read_state(recorder.run).ranks[0].data_share == 0.0


def test_what_was_not_measured_is_not_known(record: Any, row: Any) -> None:
    recorder = record()
    recorder.table("steps").append(row("steps", step=3))
    (rank,) = read_state(recorder.run).ranks
    assert rank.step == 3
    assert (rank.loss, rank.rate, rank.age, rank.data_share, rank.budget, rank.grad_norm) == (None,) * 6


def test_a_loss_that_comes_late_does_not_hide_the_one_before(record: Any, row: Any) -> None:
    recorder = record()
    train(recorder, row, 3)
    recorder.table("steps").append(row("steps", step=3))
    assert (read_state(recorder.run).ranks[0].step, read_state(recorder.run).ranks[0].loss) == (3, 0.5)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_the_first_thing_said(record: Any, row: Any, loss: float) -> None:
    recorder = record()
    train(recorder, row, 5)
    train(recorder, row, 1, start=5, loss=loss)
    state = read_state(recorder.run)
    assert state.health == "non-finite loss" and "step 5" in state.reason
    recorder.run.update_info(ended=time.time(), exit_code=137)
    assert read_state(recorder.run).reason.endswith("; killed (SIGKILL)")


def test_a_rank_that_has_recovered_from_nan_is_healthy(record: Any, row: Any) -> None:
    recorder = record()
    train(recorder, row, 1, loss=math.nan)
    train(recorder, row, 5, start=1)
    assert read_state(recorder.run).health == "healthy"


def test_silence_is_measured_against_the_usual_step(record: Any, row: Any) -> None:
    recorder = record()
    train(recorder, row, 10, until=time.time() - 45)
    assert read_state(recorder.run).health == "no step for 45 s"


def test_slow_steps_are_not_taken_for_silence(record: Any, row: Any) -> None:
    recorder = record()
    train(recorder, row, 10, until=time.time() - 45, step_seconds=20.0)
    assert read_state(recorder.run).health == "healthy"


def test_stepping_back_shows_as_degraded_with_what_failed(record: Any, row: Any) -> None:
    recorder = record()
    train(recorder, row, 5)
    recorder.step_back("table parameters", OSError("disk full"))
    assert read_state(recorder.run).health == "degraded: table parameters"


def test_before_the_first_step_it_is_starting(record: Any) -> None:
    recorder = record()
    assert read_state(recorder.run).health == "starting"


@pytest.mark.parametrize(
    ("code", "word"),
    [(0, "finished"), (1, "exit 1"), (137, "killed (SIGKILL)"), (139, "killed (SIGSEGV)"), (255, "exit 255")],
)
def test_how_the_command_ended_is_told_in_a_word(record: Any, row: Any, code: int, word: str) -> None:
    recorder = record()
    train(recorder, row, 5)
    recorder.run.update_info(ended=time.time(), exit_code=code)
    state = read_state(recorder.run)
    assert (state.health, state.alive, state.ranks[0].alive, state.exit_code) == (word, False, False, code)


def test_a_killed_process_is_seen_as_gone_and_its_rows_stay(writer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    run = RunFolder.open(tmp_path / "run")
    assert read_state(run).alive and read_state(run).health == "healthy"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    state = read_state(run)
    assert (state.alive, state.health, state.ranks[0].step, state.ranks[0].loss) == (False, "process gone", 4, 0.5)


def test_a_number_that_was_given_to_another_process_does_not_count_as_alive(record: Any, row: Any) -> None:
    recorder = record()
    train(recorder, row, 5)
    info = recorder.recording.path / "process.json"
    before = {"started": 1000.0, "start_ticks": 1}  # long before this process was born
    info.write_text(json.dumps({**json.loads(info.read_text()), **before}))
    assert not read_state(recorder.run).ranks[0].alive


def test_a_process_of_another_machine_lives_while_its_rows_are_fresh(record: Any, row: Any) -> None:
    recorder = record()
    train(recorder, row, 5)
    info = recorder.recording.path / "process.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "host": "elsewhere", "pid": 4194300}))
    assert read_state(recorder.run).alive
    assert not read_state(recorder.run, now=time.time() + 3600).alive


def test_a_training_that_another_one_followed_in_its_process_is_no_alarm(record: Any, row: Any) -> None:
    first = record()
    train(first, row, 5, until=time.time() - 300)
    second = record()
    train(second, row, 3)
    state = read_state(first.run)
    assert [(rank.rank, rank.part, rank.step) for rank in state.ranks] == [(0, 1, 2)] and state.health == "healthy"


def test_a_training_that_closed_its_tables_is_finished_though_its_process_lives(record: Any, row: Any) -> None:
    recorder = record()
    train(recorder, row, 5, until=time.time() - 300)
    recorder.close()
    assert read_state(recorder.run).health == "finished"


def test_the_worst_rank_speaks_for_the_run(record: Any, row: Any) -> None:
    for rank, loss in enumerate((0.5, math.nan, 0.5)):
        train(recorder := record(rank), row, 5, loss=loss)
    state = read_state(recorder.run)
    assert [rank.health for rank in state.ranks] == ["healthy", "non-finite loss", "healthy"]
    assert state.health == "non-finite loss"


def test_rows_that_are_parquet_already_are_seen_the_same(tiny_segments: None, record: Any, row: Any) -> None:
    recorder = record()
    train(recorder, row, 40, host_rss=77)
    now = time.time()
    before = read_state(recorder.run, now=now).ranks[0]
    recorder.close()
    compact(recorder.recording.path, final=True)
    assert not list((recorder.recording.path / "steps").glob("*.seg"))
    after = read_state(recorder.run, now=now).ranks[0]
    for name in ("step", "loss", "rate", "data_share", "budget", "host_memory", "age", "grad_norm"):
        assert getattr(after, name) == getattr(before, name), name


def test_a_folder_that_was_deleted_is_a_state_and_not_an_error(record: Any, row: Any) -> None:
    recorder = record()
    train(recorder, row, 5)
    shutil.rmtree(recorder.run.path)
    state = read_state(recorder.run)
    assert (state.health, state.alive, state.ranks) == ("folder gone", False, [])


def test_a_glance_has_the_curves_of_the_recent_steps_and_the_evaluations(record: Any, row: Any) -> None:
    recorder = record()
    for step in range(20):
        train(recorder, row, 1, start=step, loss=float(step))
    code = recorder.strings.code
    for name, value in (("loss", 0.4), ("accuracy", 0.9)):
        recorder.table("evaluations").append(
            row("evaluations", step=10, split=code("val"), name=code(name), value=value, time=1.0)
        )
    glance = look(recorder.run, rows=8)
    assert glance.curves["loss"].tolist() == [float(step) for step in range(12, 20)] and glance.first_step == 12
    assert glance.curves["lr"].tolist() == []
    assert glance.evaluations == [
        {"step": 10, "split": "val", "time": 1.0, "metrics": {"loss": 0.4, "accuracy": 0.9}, "printed": False, "epoch": None}
    ]
