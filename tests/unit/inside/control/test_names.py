from __future__ import annotations

import sys
import weakref
from types import FrameType
from typing import Any

import pytest

from holdfast.inside.control.evaluate import StoppableCode, read_code
from holdfast.inside.control.evaluate import evaluate as run_code
from holdfast.inside.control.names import Names

LIMIT = 3


class Thing:
    pass


def names() -> Names:
    def frame() -> FrameType:
        return sys._getframe()

    return Names(frame, lambda _: None)


def evaluate(code: str, own: Names | None = None, *, here: bool = True) -> dict[str, Any]:
    return run_code(read_code(code), own if own is not None else names(), StoppableCode(), in_thread=here)


def test_the_innermost_frame_comes_first_then_its_module_then_who_called_it() -> None:
    def outer() -> Any:
        name, only_outer, LIMIT = "outer", 1, "hidden by the module"
        return inner(), name, only_outer, LIMIT

    def inner() -> Any:
        name = "inner"
        return evaluate("name, only_outer, LIMIT"), name

    assert outer()[0][0]["value"] == "('inner', 1, 3)"


def test_a_local_is_given_another_value_where_it_is() -> None:
    count, other = 1, [1]

    def closure() -> int:
        return count

    evaluate("count = 7\nother.append(2)")
    assert (count, other, closure()) == (7, [1, 2], 7)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="locals write through")
def test_a_local_of_a_thread_that_runs_is_not_written_by_another() -> None:
    count = 1
    answer = evaluate("count = 7", here=False)
    assert "between two steps" in answer["error"]
    assert count == 1


def test_comprehensions_and_functions_see_the_names_too() -> None:
    factor = 2
    assert evaluate("[factor * n for n in range(3) if n < LIMIT]")["value"] == "[0, 2, 4]"
    assert evaluate("(lambda: factor + LIMIT)()")["value"] == "5"
    assert factor == 2


def test_a_name_that_is_declared_global_goes_into_the_module() -> None:
    own = names()
    assert evaluate("global LIMIT\nLIMIT = 4\nLIMIT", own)["value"] == "4"
    assert LIMIT == 4
    assert evaluate("def back():\n    global LIMIT\n    LIMIT = 3\n    return LIMIT\nback()", own)["value"] == "3"
    assert LIMIT == 3


def test_what_a_function_of_the_script_changes_meanwhile_is_seen_at_once() -> None:
    count = [1]

    def raise_it() -> None:
        nonlocal count
        count = [2]

    assert evaluate("raise_it()\ncount")["value"] == "[2]"
    assert count == [2]


def test_a_name_of_the_code_stays_and_one_that_the_script_gets_later_comes_first() -> None:
    own = names()
    evaluate("made = 1", own)
    assert evaluate("made", own)["value"] == "1"
    made = 2
    assert evaluate("made", own)["value"] == "2"
    assert made == 2


def test_what_was_looked_at_is_not_kept_alive() -> None:
    thing = Thing()
    watched = weakref.ref(thing)
    assert evaluate("thing")["ok"]
    del thing
    assert watched() is None


def test_what_the_script_keeps_of_its_locals_is_left_alone() -> None:
    value = 5
    kept = locals()
    evaluate("value")
    assert kept["value"] == 5 == value


def test_output_of_other_threads_is_not_taken(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import threading, sys\nprint('mine')\nt = threading.Thread(target=print, args=('of another',))\nt.start(); t.join()"
    answer = evaluate(code)
    assert answer["output"] == "mine\n"
    assert capsys.readouterr().out == "of another\n"
    assert type(sys.stdout).__name__ != "_ByThread"


def test_an_endless_output_is_cut() -> None:
    answer = evaluate("for _ in range(1000): print('x' * 1000)")
    assert len(answer["output"]) < 300_000 and "more characters" in answer["output"]
