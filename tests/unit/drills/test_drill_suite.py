"""The house course on paper: which training gets which fault, what is left to run, and what the scoreboard tells."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from every_case import every_case

from holdfast.drills import faults

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import drills
import scoreboard
import strangers_table
from house import PLAIN, Stretch, codes_of, every_training, in_chunks, stretches, training

GOOD = {
    "injected": True, "why_not": "", "seen": "non-finite-loss", "after_steps": 0, "after_seconds": 0.1,
    "cause": "data-non-finite", "cause_right": True,
    "survived": True, "why_not_survived": "", "metric_name": "accuracy", "metric": 0.97,
    "control_metric": 0.97, "lost_steps": 1, "lost_seconds": 0.5, "unexpected": [], "to_see": True, "to_explain": True,
    "unseen": "",
}  # fmt: skip
FAILED = {"kind": "failed", "training": "rnn_rows", "policy": "observe", "seed": 0, "codes": ["nan-batch"], "why": "busy"}


def fault(
    name: str = "digits_mlp", code: str = "nan-batch", policy: str = "observe", seed: int = 0, **more: Any
) -> dict[str, Any]:
    """A row of a fault that was seen and survived."""
    which = {"kind": "fault", "training": name, "fault": code, "policy": policy, "seed": seed}
    return {**which, **GOOD, "to_survive": policy == "heal", **more}


def control(number: int, **more: Any) -> dict[str, Any]:
    row = {
        "kind": "control",
        "training": f"zoo gan {number}",
        "policy": "heal",
        "seed": number,
        "false_alarms": [],
        "actions": [],
    }
    return {**row, "metric_name": "loss", "metric": 0.5, "seconds": 4.0, "steps": 300, **more}


def good_course() -> list[dict[str, Any]]:
    runs = [fault(policy=policy, seed=seed) for policy in ("observe", "heal") for seed in range(50)]
    return [*runs, *(control(number) for number in range(100))]


def test_every_fault_of_the_house_has_a_training_that_can_have_it() -> None:
    given = {code for name in every_training(gpu=True) for code in codes_of(name, "observe")}
    assert given == set(faults.every())


def test_heal_is_asked_only_for_what_can_be_survived() -> None:
    for name in every_training(gpu=True):
        assert all(faults.find(code).expected.survivable for code in codes_of(name, "heal"))


@every_case("name", every_training(gpu=True))
def test_the_script_of_each_training_is_there(name: str) -> None:
    words = training(name).command
    assert any(Path(word).is_file() for word in words if word.endswith(".py"))


def test_a_stretch_in_pieces_has_each_fault_once() -> None:
    codes = faults.every()
    pieces = list(in_chunks(Stretch("digits_mlp", "observe", 0, codes)))
    assert sorted(code for piece in pieces for code in piece.codes) == sorted(codes)


def test_what_was_run_in_an_earlier_call_is_not_run_again() -> None:
    planned = list(stretches(["digits_mlp"], ["observe"], [0, 1], ["nan-batch", "lr-x100"]))
    rows = [fault(), {"kind": "skipped", "training": "digits_mlp", "fault": "lr-x100", "why": "no such thing"}]
    assert drills.remaining(planned, rows) == [Stretch("digits_mlp", "observe", 1, ("nan-batch",))]
    assert drills.remaining([Stretch("zoo gan 3", "heal", 3)], [control(3)]) == []


def test_a_course_without_a_miss_is_ok_in_every_bar() -> None:
    assert all(bar.ok for bar in scoreboard.Course(good_course()).bars())


@every_case(
    ("rows", "bar", "told"),
    [
        ([fault(seed=n, seen=None, cause_right=False, unexpected=["hang"]) for n in range(2)], "seen", "raised instead: hang"),
        ([fault(seed=n, cause="log-of-zero", cause_right=False) for n in range(6)], "first cause", ": log-of-zero"),
        (
            [fault(seed=n, policy="heal", survived=False, why_not_survived="exit 1", to_survive=True) for n in range(3)],
            "survived",
            "exit 1",
        ),
        ([control(5, false_alarms=["loss-spike"])], "healthy", "loss-spike"),
        ([{**FAILED, "why": "no torch"}], "runs", "no torch"),
    ],
)  # fmt: skip
def test_a_miss_breaks_its_bar_alone_and_is_listed_with_its_reason(rows: list[dict[str, Any]], bar: str, told: str) -> None:
    rows = [*good_course(), *rows]
    missed = [one.what for one in scoreboard.Course(rows).bars() if not one.ok]
    assert len(missed) == 1
    assert missed[0].startswith(bar)
    assert told in scoreboard.page(rows)


def test_the_newest_run_of_the_same_counts() -> None:
    course = scoreboard.Course([fault(seen=None), fault()])
    assert [row["seen"] for row in course.to_see] == ["non-finite-loss"]


def test_a_run_that_failed_and_came_later_is_no_miss() -> None:
    assert scoreboard.Course([FAILED]).failed == [FAILED]
    assert scoreboard.Course([FAILED, fault(name="rnn_rows")]).failed == []


def test_the_page_names_the_machine_and_the_runs_that_were_left_out() -> None:
    rows = [{"kind": "machine", "machine": "Linux, 16 cores", "date": "2026-01-02"}, *good_course()]
    text = scoreboard.page(rows, missing_runs=7)
    assert "2026-01-02. Measured on: Linux, 16 cores." in text
    assert "7 runs of the course were left out" in text
    assert "| `nan-batch` | 50 / 50 | 0 (0) | 0.1 (0.1) | 50 / 50 | 50 / 50 | +0.0 (+0.0) | 0.5 (0.5) |" in text


def stranger(half: str, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    about = {"half": half, "package": "skorch", "machine": "Linux, 16 cores (8 runs at a time)", "date": "2026-01-02"}
    return [{**about, **row} for row in rows]


def test_the_tables_of_strangers_tell_what_was_missed_only_of_the_half_to_build_with() -> None:
    missed = fault(policy="heal", code="lr-x100", seen=None, survived=False, why_not_survived="exit 1")
    scored = stranger("score", fault(policy="heal"), missed, control(0, training="digits_mlp"))
    built = stranger("build", {**missed, "training": "other", "fault": "dead-relu"})
    text = strangers_table.section(strangers_table.newest([*scored, *built]))
    assert "| skorch | 1 / 2 | 1 / 1 | 1 / 2 | 0 / 1 |" in text
    assert "`dead-relu` | not survived: exit 1" in text and "`lr-x100`" not in text


def test_drills_run_again_keep_the_other_sections_of_the_scoreboard(tmp_path: Path) -> None:
    page = tmp_path / "scoreboard.md"
    page.write_text(
        strangers_table.with_section("# Scoreboard\n", "## Training loops\n") + "\n## Other tools\n", encoding="utf-8"
    )
    given = argparse.Namespace(write=page, only_training=[], only_fault=[], only_policy=None)
    drills.report(good_course(), 0, given, 1.0)
    text = page.read_text(encoding="utf-8")
    assert "| `nan-batch` |" in text and "## Training loops\n" in text
    assert text.endswith(f"{scoreboard.END_OF_STRANGERS}\n\n## Other tools\n")
    replaced = strangers_table.with_section(text, "## New\n")
    assert "## Training loops" not in replaced and replaced.endswith("## New\n\n<!-- end of strangers -->\n\n## Other tools\n")


def test_no_training_of_the_course_knows_of_holdfast_or_of_drills() -> None:
    for name in (*PLAIN, "two_ranks", "learning", "digits_data", "tracker"):
        source = (Path(drills.__file__).parent / "drill_trainings" / f"{name}.py").read_text(encoding="utf-8").lower()
        assert "holdfast" not in source
        assert "drill" not in source
