from __future__ import annotations

import json
import math
import subprocess
import time
from typing import Any

import numpy as np
import pytest
from every_case import every_case
from rich.console import Console

from holdfast.cli.screen import screen
from holdfast.cli.show import duration, number, rate, share, size, sparkline
from holdfast.probe.glance import look
from holdfast.signals.schema import TABLES


def drawn(run: Any, width: int = 100) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(screen(look(run), width))
    return console.export_text()


def test_the_screen_shows_everything_at_a_hundred_columns(training: Any) -> None:
    recorder = training("digits", steps=200)
    code = recorder.strings.code
    recorder.table("evaluations").append([150, 3, code("val"), code("accuracy"), 0.91, 300, time.time()])
    recorder.run.journal.write("finding", code="slow-loading", severity="warning", rank=0, evidence={"fraction": 0.42})
    text = drawn(recorder.run)
    for shown in ("digits", "step 199", "loss", "grad norm", "lr", "step rate", "10/s", "data wait", "30 %", "memory", "954 MiB"):
        assert shown in text, shown
    for shown in (
        "Holdfast",
        "0.40 %",
        "slow data loading",
        "evaluated",
        "step 150",
        "accuracy 0.91",
        "slow-loading",
        "fraction 0.42",
    ):
        assert shown in text, shown
    assert "█" in text and "▁" in text
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_screen_fits_other_widths(training: Any, width: int) -> None:
    assert max(map(len, drawn(training().run, width).splitlines())) <= width


@pytest.mark.parametrize("length", [10, 3000])  # an epoch may be longer than the curves
def test_how_far_the_epoch_and_the_run_are(training: Any, length: int) -> None:
    recorder = training(steps=0)
    table, last, now = recorder.table("steps"), 2 * length + length // 2, time.time()
    for step in range(last):
        row = {"step": step, "time": now - 0.1 * (last - 1 - step), "loss": 1.0, "step_seconds": 0.1, "epoch": step // length}
        table.append([row.get(column.name, column.kind.missing) for column in TABLES["steps"].columns])
    recorder.run.update_info(command=["python", "train.py", "--epochs", "5"])
    text = drawn(recorder.run, 120)
    left = duration(0.1 * (length - length // 2)), duration(0.1 * (5 * length - last))
    assert f"epoch 2 (50 %)   epoch ETA {left[0]}   run ETA {left[1]} (5 epochs)" in text


def test_a_run_that_makes_no_steps_has_no_eta(training: Any) -> None:
    recorder = training(steps=0)
    table, now = recorder.table("steps"), time.time()
    for step in range(25):
        row = {"step": step, "time": now - 60 - 0.1 * (24 - step), "loss": 1.0, "step_seconds": 0.1, "epoch": step // 10}
        table.append([row.get(column.name, column.kind.missing) for column in TABLES["steps"].columns])
    recorder.run.update_info(command=["python", "train.py", "--epochs", "5"])
    text = drawn(recorder.run, 120)
    assert "epoch 2 (50 %)" in text and "ETA" not in text


def test_a_nan_shows_as_a_cross_in_the_curve_and_in_the_health(training: Any) -> None:
    text = drawn(training(loss=math.nan).run)
    assert "×" in text and "non-finite loss" in text


def test_a_run_that_has_not_stepped_says_so(training: Any) -> None:
    assert "no step yet" in drawn(training(steps=0).run)


def test_all_ranks_are_on_the_screen(training: Any) -> None:
    training(rank=0)
    text = drawn(training(rank=1, loss=math.inf).run)
    assert "ranks  0 29 ●" in text and "non-finite loss" in text


def test_in_a_pipe_it_writes_a_line_per_change_and_ends_with_the_run(command: list[str], training: Any) -> None:
    recorder = training("digits", steps=5)
    with subprocess.Popen([*command, "tail"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        recorder.run.update_info(ended=time.time(), exit_code=0)
        rest = process.stdout.read().splitlines()
    assert first.startswith("step 4  loss 0.2  norm 2  lr 0.01  10/s  data 30 %  memory 954 MiB  cost 0.40 %  healthy")
    assert len(rest) == 1 and rest[0].endswith("finished") and process.returncode == 0


def test_once_writes_one_line_and_leaves_a_live_run_alone(holdfast: Any, training: Any) -> None:
    training()
    assert len(holdfast("tail", "--once").out.splitlines()) == 1


def test_json_lines_hold_the_state(holdfast: Any, training: Any) -> None:
    recorder = training(steps=3, loss=math.nan)
    recorder.run.journal.write("finding", code="slow-loading", severity="warning")
    line = json.loads(holdfast("tail", "--json", "--once").out)
    assert (line["name"], line["alive"], line["health"]) == ("digits", True, "non-finite loss")
    assert line["ranks"][0]["step"] == 2 and line["ranks"][0]["loss"] == "nan"
    assert [finding["code"] for finding in line["findings"]] == ["slow-loading"]


def bad_update(run: Any, step: int, rank: int = 0) -> None:
    evidence = {"loss": math.nan, "parameter": "encoder.2.weight", "batch": {"indices": [3, 17, 22, 40, 41]}}
    where = {"step": step, "rank": rank}
    run.journal.write("finding", code="non-finite-gradient", severity="critical", **where, evidence=evidence)
    run.journal.write("action", action="skip-batch", because="non-finite-gradient", settings={}, state="done", **where)


def roll_back(run: Any, state: str, **more: Any) -> None:
    settings = {"to": 850, "lr_factor": 0.75, "warmup_steps": 0}
    run.journal.write(
        "action", action="roll-back", step=900, because="loss-divergence", settings=settings, number=1, state=state, **more
    )


LEFT_OUT = "! step 412  non-finite gradient in encoder.2.weight: update skipped (batch indices 3, 17, 22, 40, …)"
ROLLED_BACK = "* step 900  rolled back to step 850, learning rate x 0.75, because loss-divergence"


def test_in_a_pipe_findings_and_actions_stand_between_the_lines(command: list[str], training: Any) -> None:
    recorder = training("digits", steps=5)
    with subprocess.Popen([*command, "tail"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        bad_update(recorder.run, 412)
        recorder.run.journal.write("diagnosis", step=900, causes=["learning-rate-too-high"], findings=["loss-divergence"])
        roll_back(recorder.run, "posted")
        roll_back(recorder.run, "done", rank=0)
        told = [process.stdout.readline().rstrip() for _ in range(3)]
        recorder.run.update_info(ended=time.time(), exit_code=0)
        rest = process.stdout.read().splitlines()
    assert [line for line in (*told, *rest) if line[0] in "!*?"] == [LEFT_OUT, ROLLED_BACK]
    assert rest[-1].endswith("finished")


def test_it_begins_with_the_last_few_events_from_before(holdfast: Any, training: Any) -> None:
    run = training(live=False).run
    for step in range(406, 413):
        bad_update(run, step)
    shown = holdfast("tail").out.splitlines()
    assert len(shown) == 6 and shown[4] == LEFT_OUT and shown[5].endswith("finished")


def test_json_lines_tell_findings_and_actions_as_objects_with_a_kind(command: list[str], training: Any) -> None:
    recorder = training("digits", steps=5)
    with subprocess.Popen([*command, "tail", "--json"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["kind"] == "state"
        bad_update(recorder.run, 412)
        recorder.run.update_info(ended=time.time(), exit_code=0)
        rest = [json.loads(line) for line in process.stdout]
    assert [line["kind"] for line in rest] == ["finding", "action", "state"]
    assert rest[0]["evidence"]["loss"] == "nan" and rest[1]["words"] == "update skipped, because non-finite-gradient"


def test_in_a_terminal_it_draws_with_events_above_the_screen_and_ends_when_the_run_ends(training: Any, in_terminal: Any) -> None:
    recorder = training("digits")
    recorder.run.update_info(policy="heal")

    def events() -> None:
        bad_update(recorder.run, 412)
        roll_back(recorder.run, "done", rank=0)

    when = [
        (lambda text: "healthy" in text, events),
        (lambda text: text.partition(ROLLED_BACK)[2].count("digits") > 2, lambda: end(recorder.run)),  # it was redrawn
    ]
    written = in_terminal("tail", when=when)
    assert "encoder.2.weight: update skipped" in written and "heal" in written
    assert written.count("update skipped (batch") == 1  # and not once more at every redraw
    assert "killed (SIGKILL)" in written


def end(run: Any) -> None:
    run.update_info(ended=time.time(), exit_code=137)


def test_the_screen_holds_the_newest_events_and_fits(training: Any) -> None:
    run = training(rank=0).run
    training(rank=1)
    for step, rank in ((410, 0), (410, 1), (412, 0), (412, 1)):
        bad_update(run, step, rank)
    roll_back(run, "posted")
    text = drawn(run)
    assert "will roll back to step 850" in text and "[2 ranks]" in text and text.count("update skipped (batch") == 2
    assert max(map(len, text.splitlines())) <= 100


def test_a_finished_run_is_shown_once_and_ends(holdfast: Any, training: Any) -> None:
    training(live=False)
    done = holdfast("tail")
    assert done.code == 0 and done.out.rstrip().endswith("finished")


def test_a_sparkline_rises_with_its_values() -> None:
    assert sparkline(np.arange(8.0), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline(np.ones(5), 8) == "▁▁▁▁▁"
    assert sparkline(np.array([1.0, math.nan, 2.0]), 8) == "▁×█"
    assert sparkline(np.array([math.inf]), 8) == "×"
    assert sparkline(np.array([]), 8) == ""
    assert len(sparkline(np.arange(1000.0), 40)) == 40
    assert sparkline(np.array([1.0, 10.0, 100.0, 1000.0]), 4) == "▁▃▆█"  # decades are equally far apart
    assert sparkline(np.array([0.9, 1.0]), 4, from_zero=True) == "██"


@every_case(
    ("shown", "text"),
    [
        (number(0.123456), "0.1235"),
        (number(12345), "12,345"),
        (number(3e-7), "3.00e-07"),
        (number(math.nan), "nan"),
        (number(-math.inf), "-inf"),
        (number(None), "–"),
        (number(0.0), "0"),
        (size(1536), "1.5 KiB"),
        (size(80 * 2**30), "80 GiB"),
        (share(0.0123), "1.23 %"),
        (share(0.42), "42 %"),
        (duration(3.21), "3.2 s"),
        (duration(75), "1 min 15 s"),
        (duration(7300), "2 h 1 min"),
        (rate(12.34), "12.3/s"),
        (rate(0.25), "4 s each"),
    ],
)
def test_values_are_short_and_say_their_unit(shown: str, text: str) -> None:
    assert shown == text
