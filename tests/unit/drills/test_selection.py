from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from every_case import every_case

from holdfast.drills import faults
from holdfast.drills.selection import (
    At,
    draw_step,
    load_faults,
    missing_requirements,
    plan_fault,
    plan_sequence,
    read_at,
    read_codes,
    why_not_in_sequence,
    with_strength,
)
from holdfast.errors import UsageError


def test_faults_are_named_by_code_by_number_or_all_together() -> None:
    every = list(faults.every())
    assert read_codes("all") == every
    assert read_codes("nan-batch, 1,nan-batch") == ["nan-batch", every[0]]
    assert read_codes("mine,nan-batch", ["mine"]) == ["mine", "nan-batch"]


@every_case(("text", "fix"), [("nan-btch", "nan-batch"), ("0", "1 to"), ("9999", "--list"), (" , ", "--faults all")])
def test_a_fault_that_there_is_not_is_told_with_the_nearest(text: str, fix: str) -> None:
    with pytest.raises(UsageError) as told:
        read_codes(text)
    assert fix in told.value.fix


def test_steps_are_for_all_faults_or_for_one() -> None:
    at = read_at(["step=200", "300", "nan-batch=7"], ["nan-batch", "lr-x100"])
    assert at.of("lr-x100") == (200, 300) and at.of("nan-batch") == (7,) and at.latest == 300
    assert [one.step for one in plan_fault("lr-x100", "", 0, 1000, at)] == [200, 300]


@every_case("text", ["step=x", "epoch=3", "-5", "", "inf-pixel=3"])
def test_what_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a step"):
        read_at([text], ["nan-batch"])


@every_case("seed", range(20))
def test_the_same_seed_draws_the_same_step_in_the_middle_of_the_run(seed: int) -> None:
    step = draw_step("nan-batch", seed, 1000)
    assert 300 <= step <= 600 and step == draw_step("nan-batch", seed, 1000)
    assert 1 <= draw_step("nan-batch", seed, 3) <= 2


def test_seeds_and_faults_draw_different_steps() -> None:
    assert len({draw_step("nan-batch", seed, 10_000) for seed in range(10)}) > 8
    assert draw_step("nan-batch", 0, 10_000) != draw_step("lr-x100", 0, 10_000)


def test_a_mistake_of_the_script_is_there_from_the_first_step_whatever_was_asked() -> None:
    assert [one.step for one in plan_fault("unshuffled", "", 0, 1000, At((200,)))] == [0]


def test_a_delay_is_as_long_as_slow_steps_need_it_to_be() -> None:
    (planned,) = plan_fault("slow-loader", "", 0, 1000, At())
    assert with_strength(planned, 0.01).strength is None, "its own 50 ms"
    assert with_strength(planned, 0.4).strength == pytest.approx(1.2)
    assert with_strength(replace(planned, strength=0.1), 0.4).strength == 0.1, "as was asked for"
    assert with_strength(replace(planned, code="nan-batch"), 0.4).strength is None


def test_faults_in_a_sequence_come_in_order_and_apart() -> None:
    steps = [one.step for one in plan_sequence(["nan-batch", "lr-x100", "process-killed"], {}, 1000, At())]
    assert steps == sorted(steps) and min(b - a for a, b in itertools.pairwise(steps)) >= 300 and steps[-1] < 1000
    asked = plan_sequence(["nan-batch", "lr-x100"], {}, 1000, At((5, 9)))
    assert [one.step for one in asked] == [5, 9]
    with pytest.raises(UsageError, match="1 steps for 2 faults"):
        plan_sequence(["nan-batch", "lr-x100"], {}, 1000, At((5,)))


def test_what_ends_or_fills_a_run_is_not_put_into_a_sequence() -> None:
    assert "first step" in why_not_in_sequence("unshuffled", "")
    assert "no run survives" in why_not_in_sequence("memory-leak", "")
    assert not why_not_in_sequence("nan-batch", "")


def test_what_a_training_lacks_is_said_in_words() -> None:
    assert missing_requirements("worker-killed", "", {"loader"}) == "no loader workers"
    assert missing_requirements("slow-worker", "", {"loader", "workers"}) == "not several loader workers"
    assert missing_requirements("rank-killed", "", set()) == "not several ranks"
    assert missing_requirements("slow-worker", "", {"loader", "workers", "several-workers"}) == ""


@every_case(
    ("text", "said"),
    [
        ("x = 1\n", "contains no fault"),
        ("from holdfast.drills import Fault\nclass F(Fault):\n    code = 'nan-batch'\n", "already"),
        ("from holdfast.drills import Fault\nclass F(Fault):\n    code = 'mine'\n", "no `description`"),
        ("def broken(:\n", "cannot be loaded: SyntaxError"),
        ("import no_such_package\n", "cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_a_file_that_holds_no_whole_fault_is_refused_in_words(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(UsageError) as told:
        load_faults(tmp_path / "mine.py")
    assert said in told.value.problem


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="no Python file"):
        load_faults(Path("nowhere.py"))


def test_the_fault_in_the_documentation_is_the_one_in_the_examples() -> None:
    root = Path(__file__).parents[3]
    page = (root / "docs" / "drills.md").read_text(encoding="utf-8")
    example = (root / "examples" / "faults" / "sensor_off.py").read_text(encoding="utf-8")
    shown = page.partition("## A fault of your own")[2].partition("```python\n")[2].partition("```")[0]
    assert example.endswith(shown), "docs/drills.md shows another class than the one that is drilled with"
    assert list(load_faults(root / "examples" / "faults" / "sensor_off.py")) == ["sensor-off"]
