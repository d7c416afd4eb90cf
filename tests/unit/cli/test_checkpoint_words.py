"""Rows about checkpoints read as sentences; rows of another version are shown as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from every_case import every_case

from holdfast.diagnosis.event_words import live_line, sentence, shown_live, word
from holdfast.probe.health import journal_health, run_health
from holdfast.probe.journal import Event, Folding

AGAINST = {"run": "first", "step": 400, "loss": 0.0861}


def event(**row: Any) -> Event:
    return Folding([{"kind": "checkpoint", "time": 1.0, "rank": 0, **row}]).events[0]


@every_case(
    ("row", "words"),
    [
        ({"event": "saved", "path": "{here}/last.pt", "size": 29_184, "seconds": 1.24}, "saved last.pt (28.5 KiB in 1.2 s)"),
        (
            {"event": "saved", "path": "/a/last.pt", "count": 9, "and_others": 3},
            "saved /a/last.pt, the last of 9 saves, and 3 other files",
        ),
        (
            {"event": "diverted", "path": "{here}/best.pt", "diverted_to": "{here}/best.non-finite-step-50.pt"},
            "kept best.pt: the non-finite state was saved separately, as best.non-finite-step-50.pt",
        ),
        ({"event": "loaded", "path": "{here}/last.pt"}, "loaded last.pt"),
        (
            {"event": "resumed", "path": "{here}/last.pt", "at": 4000, "before": {"run": "/runs/first"}, "optimizer": "empty"},
            "resumed at step 4,000 from last.pt of run first; the optimizer has no state",
        ),
        (
            {
                "event": "resumed",
                "path": None,
                "weights": {"of": 10, "missing": 4, "missing_statistics": 2},
                "scheduler": "as new",
            },
            "resumed; 4 of 10 weights were missing in the checkpoint; 2 running statistics were missing in the checkpoint; "
            "the scheduler was not restored",
        ),
        (
            {"event": "resume-watch", "verdict": "watching", "steps": 500, "against": AGAINST},
            "comparing the first 500 steps with run first at its step 400, where the loss was 0.0861",
        ),
        (
            {"event": "resume-watch", "verdict": "watching", "steps": 500, "against": None},
            "no earlier run was found: the first steps are checked for an explosion only",
        ),
        (
            {
                "event": "resume-watch",
                "verdict": "warning",
                "after": 500,
                "over": True,
                "came_back": True,
                "loss": 0.43,
                "against": AGAINST,
            },
            "verdict on the resume: warning, after 500 steps; the loss rose from 0.0861 to 0.43, and recovered",
        ),
        (
            {"event": "resume-watch", "verdict": "unknown", "after": 9, "over": True},
            "too few steps to judge the resume, after 9 steps",
        ),
        ({"event": "melted", "path": "/a", "heat": 3}, "melted path /a, heat 3"),
        ({}, "None"),
    ],
)
def test_every_event_is_a_sentence(row: dict[str, Any], words: str, here: Path) -> None:
    there = {name: value.format(here=here) if isinstance(value, str) else value for name, value in row.items()}
    assert sentence(event(**there)) == words


def test_a_finding_names_the_file_that_is_kept_and_the_tensors(here: Path) -> None:
    tensors = [{"name": f"layer.{number}", "nan": 3, "inf": 0, "of": 8} for number in range(5)]
    evidence = {"path": str(here / "best.pt"), "diverted_to": str(here / "b.pt"), "bad_tensors": 7, "tensors": tensors}
    finding = Event({"kind": "finding", "code": "checkpoint-non-finite", "severity": "critical", "step": 5, "evidence": evidence})
    assert sentence(finding) == (
        "a checkpoint holds NaN or Inf [checkpoint-non-finite]: best.pt is kept; the new state was saved as b.pt; "
        "layer.0 (3 NaN of 8), layer.1 (3 NaN of 8), layer.2 (3 NaN of 8) and 4 more"
    )
    assert "layer.0" not in sentence(finding, brief=True) and "best.pt is kept" in live_line(finding)


def test_a_mismatch_says_what_was_probably_not_restored() -> None:
    evidence = {"lr": 0.03, "lr_before": 0.0113, "suspects": ["learning-rate", "moments"]}
    finding = Event({"kind": "finding", "code": "resume-mismatch", "severity": "warning", "step": 9, "evidence": evidence})
    assert sentence(finding) == (
        "the resume does not match the earlier run [resume-mismatch]: lr 0.0113 → 0.03; "
        "probably not restored: learning rate, moments"
    )


def test_ranks_that_load_the_same_file_are_one_event() -> None:
    rows = [{"kind": "checkpoint", "event": "loaded", "path": "/a.pt", "rank": rank, "seconds": rank} for rank in range(4)]
    (one,) = Folding(rows).events
    assert one.ranks == {0, 1, 2, 3}


def test_verdicts_are_the_word_of_the_line_and_tail_leaves_the_worse_ones_to_their_finding() -> None:
    assert word(event(event="resume-watch", verdict="healthy", over=True)) == "healthy"
    assert word(event(event="resume-watch", verdict="watching")) == "checkpoint"
    assert not shown_live(event(event="resume-watch", verdict="warning"))
    assert shown_live(event(event="resume-watch", verdict="warning", over=True))


# In ps and tail, while it lasts


def health(*rows: dict[str, Any], step: int = 119) -> Any:
    events = [event(event="resume-watch", step=0, at=4000, **row) for row in rows]
    return journal_health(events, step=step, now=1e6)


def test_the_health_shows_how_far_the_watch_is() -> None:
    begun = {"verdict": "watching", "steps": 500}
    assert health(begun) == ("resumed at step 4,000, watching: healthy, 120 of 500 steps", "")
    assert health(begun, {"verdict": "warning"}) == ("resumed at step 4,000, watching: warning, 120 of 500 steps", "")
    assert health(begun, {"verdict": "healthy", "over": True}) is None
    assert health(begun, step=900) == ("resumed at step 4,000, watching: healthy, 500 of 500 steps", "")
    assert health({"verdict": "warning"}) is None and health() is None


def test_a_rank_that_is_worse_off_speaks_before_the_watch() -> None:
    watched = ("resumed at step 4,000, watching: healthy, 120 of 500 steps", "")
    assert run_health(True, True, None, [watched, ("healthy", "")]) == watched
    assert run_health(True, True, None, [watched, ("warning: loss spike at 3", "")])[0].startswith("warning")
    assert run_health(True, True, None, [watched, ("process gone", "")])[0] == "process gone"
