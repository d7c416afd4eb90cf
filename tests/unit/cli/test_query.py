from __future__ import annotations

import csv
import io
import json
import math
import shlex
import subprocess
import time
from typing import Any

import pytest


def test_the_answer_goes_to_stdout_as_csv_when_nobody_looks(holdfast: Any, training: Any) -> None:
    training(steps=3)
    done = holdfast("query", "SELECT step, loss, lr, clip_norm FROM steps ORDER BY step")
    assert done.code == 0 and done.err == ""
    assert done.out.splitlines() == ["step,loss,lr,clip_norm", "0,1.0,0.01,", "1,0.5,0.01,", "2,0.3333333333333333,0.01,"]


def test_json_is_a_list_of_objects_in_which_nan_stays_visible(holdfast: Any, training: Any) -> None:
    training(steps=1, loss=math.nan)
    done = holdfast("query", "--json", "SELECT step, loss, epoch, loss FROM steps")
    assert json.loads(done.out) == [{"step": 0, "loss": "nan", "epoch": None, "loss_2": "nan"}]


def test_a_terminal_gets_aligned_columns(in_terminal: Any, training: Any) -> None:
    training(steps=3)
    lines = in_terminal("query", "SELECT step, loss FROM steps ORDER BY step").replace("\r", "").splitlines()
    assert [line.split() for line in lines][-3:] == [["0", "1"], ["1", "0.5"], ["2", "0.333333"]]
    assert lines[-1].endswith("   2  0.333333")


def test_a_wide_row_is_shown_one_value_a_line_in_a_terminal(in_terminal: Any, training: Any) -> None:
    training(steps=1)
    shown = in_terminal("query", "SELECT * FROM steps")
    assert "grad_norm" in shown and max(map(len, shown.splitlines())) <= 100


def test_sql_can_come_from_stdin(holdfast: Any, training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    training(steps=2)
    monkeypatch.setattr("sys.stdin", io.StringIO("SELECT COUNT(*) AS n FROM steps\n"))
    assert holdfast("query", "-").out == "n\n2\n"


def test_a_run_is_chosen_with_t(holdfast: Any, training: Any) -> None:
    training("old", steps=4, live=False)
    training("new", steps=2)
    count = "SELECT COUNT(*) AS n FROM steps"
    assert holdfast("query", count).out == "n\n2\n"
    assert holdfast("query", "-t", "old", count).out == "n\n4\n"
    assert holdfast("query", "--target", "runs/old", count).out == "n\n4\n"


def test_a_cut_answer_says_so_on_stderr_and_how_to_see_more(holdfast: Any, training: Any) -> None:
    training(steps=30)
    done = holdfast("query", "--limit", "10", "SELECT step FROM steps")
    assert len(list(csv.reader(io.StringIO(done.out)))) == 11
    assert done.err == "only the first 10 rows; --limit 100 shows more\n" and done.code == 0


def test_an_empty_table_says_why_on_stderr_and_nothing_else_on_stdout(holdfast: Any, training: Any) -> None:
    training()
    done = holdfast("query", "SELECT name FROM parameters")
    assert done.out == "name\n" and "no step was sampled yet" in done.err and done.code == 0


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT los FROM steps", "near it: loss"),
        ("SELECT * FROM stepps", "near it: steps"),
        ("selec 1", 'syntax error at or near "selec"'),
        ("DROP VIEW steps", "DROP is not allowed"),
        ("SELECT * FROM read_csv('/etc/passwd')", "cannot use files"),
    ],
)
def test_what_cannot_be_answered_is_one_line_and_a_fix(holdfast: Any, training: Any, sql: str, said: str) -> None:
    training()
    done = holdfast("query", sql)
    problem, fix = done.err.splitlines()
    assert problem.startswith("error: ") and said in problem and fix.startswith("  fix: ")
    assert (done.code, done.out) == (2, "")


def test_no_run_here_says_how_to_start_one(holdfast: Any) -> None:
    done = holdfast("query", "SELECT 1")
    assert done.code == 2 and "holdfast run -- python train.py" in done.err


def test_sql_that_never_ends_ends_in_time_and_quietly(command: list[str], training: Any) -> None:
    training()
    slow = "SELECT levenshtein(repeat('ab', 60000), repeat('ba', 60000))"
    start = time.monotonic()
    done = subprocess.run([*command, "query", "--timeout", "0.5", slow], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2 and time.monotonic() - start < 30
    assert done.stderr.startswith("error: the query was stopped after 0.5 s.\n  fix: ") and len(done.stderr.splitlines()) == 2


def test_a_reader_that_closes_early_gets_no_traceback(command: list[str], training: Any) -> None:
    training(steps=900)
    line = f"{shlex.join(command)} query 'SELECT * FROM steps a, steps b' --limit 100000 | head -n 1"
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=600)
    assert done.stdout.startswith("rank,part,step") and "Traceback" not in done.stderr and "Broken" not in done.stderr


def test_an_error_of_our_own_is_one_line_unless_debugging(holdfast: Any, training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    training()
    monkeypatch.setattr("holdfast.probe.cluster_query.query", lambda *_, **__: 1 / 0)
    done = holdfast("query", "SELECT 1")
    assert done.code == 2 and done.err.startswith("error: ZeroDivisionError: division by zero\n") and "Traceback" not in done.err
    monkeypatch.setenv("HOLDFAST_DEBUG", "1")
    assert "Traceback" in holdfast("query", "SELECT 1").err


def test_a_wrong_option_is_explained_and_ends_with_2(holdfast: Any) -> None:
    done = holdfast("query", "--limt", "3", "SELECT 1")
    assert done.code == 2 and "--limit" in done.err and done.out == ""


def test_interrupting_ends_with_130_and_without_words(holdfast: Any, training: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    training()

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.probe.cluster_query.query", interrupted)
    done = holdfast("query", "SELECT 1")
    assert (done.code, done.out, done.err) == (130, "", "")
