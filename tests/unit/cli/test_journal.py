from __future__ import annotations

import json
import math
import random
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from every_case import every_case

from holdfast.cli.journal_lines import JournalLines, after
from holdfast.diagnosis.event_words import sentence
from holdfast.probe.journal import Feed, Folding, JournalReader
from holdfast.probe.words import ACTIONS, FINDINGS
from holdfast.signals.actions import KINDS

BATCH = {"indices": [3, 17, 22, 40, 41], "file": "batches/step-412.pt"}
NAN = {
    "loss": math.nan, "norm": math.inf, "lr": 3e-4, "parameter": "encoder.2.weight", "module": "encoder.2", "bad_parameters": 38,
    "input": "field 0 holds 3 NaN", "batch": BATCH, "loss_before": [0.54, 0.53, 0.52], "norm_before": [1.2, 1.1],
}  # fmt: skip
BACK = {"action": "roll-back", "step": 900, "because": "loss-divergence", "number": 1}
SETTINGS = {"to": 850, "lr_factor": 0.75, "warmup_steps": 0, "regain_steps": 50}


def bad_update(run: Any, step: int = 412, rank: int = 0, **evidence: Any) -> None:
    finding = {"code": "non-finite-gradient", "severity": "critical", "step": step, "rank": rank}
    run.journal.write("finding", **finding, evidence=NAN | evidence)
    skip = {"action": "skip-batch", "step": step, "because": "non-finite-gradient", "settings": {}, "state": "done"}
    run.journal.write("action", **skip, rank=rank)


def roll_back(run: Any, *states: tuple[str, int | None]) -> None:
    for state, rank in states:
        told = {} if rank is None else {"rank": rank, "detail": "restored the snapshot in 0.31 s"}
        run.journal.write("action", **BACK, settings=SETTINGS, state=state, **told)


def a_bad_day(run: Any) -> None:
    run.journal.write("finding", code="slow-loading", severity="warning", step=120, rank=0, evidence={"fraction": 0.42})
    bad_update(run)
    run.journal.write("finding", code="loss-divergence", severity="critical", step=900, evidence={"loss": 14.2, "normal": 0.48})
    causes = {"causes": ["learning-rate-too-high", "no-warmup"], "findings": ["loss-divergence"], "onset": 871}
    run.journal.write("diagnosis", step=900, **causes)
    roll_back(run, ("posted", None), ("done", 0))
    run.journal.write("change", what="deep supervision", step=950, rank=0)


def told(run: Any, width: int | None = 100) -> str:
    rows = list(run.journal)
    return "\n".join(line.plain for line in JournalLines(run).lines(Folding(rows).events, width))


def words(out: str) -> list[str]:
    """Lines without the two times at their beginning."""
    return [re.sub(r"^\d\d:\d\d:\d\d  \+\S+ +", "", line).rstrip() for line in out.splitlines()]


def test_a_hundred_columns_hold_every_entry_folded_under_its_own_words(training: Any) -> None:
    run = training().run
    run.update_info(started=time.time() - 125.4)
    a_bad_day(run)
    shown = told(run)
    assert max(map(len, shown.splitlines())) <= 100
    assert words(shown) == [
        "step 120  warning    slow data loading [slow-loading]: fraction 0.42",
        "step 412  critical   non-finite gradient in encoder.2.weight: loss 0.54 → 0.53 →",
        "                                      0.52 → nan, norm 1.2 → 1.1 → inf, lr 0.0003; 38 parameters are",
        "                                      not finite; input: field 0 holds 3 NaN; batch indices 3, 17,",
        "                                      22, 40, …; batch saved as batches/step-412.pt",
        "step 412  done       update skipped, because non-finite-gradient",
        "step 900  critical   the loss rose and stays high [loss-divergence]: loss 14.2,",
        "                                      normal 0.48",
        "step 900  diagnosis  likely cause of loss-divergence since step 871:",
        "                                      learning-rate-too-high (or no-warmup)",
        "step 900  done       rolled back to step 850, learning rate x 0.75 for 50 steps,",
        "                                      because loss-divergence (restored the snapshot in 0.31 s)",
        "step 950  change     deep supervision",
    ]
    assert shown.splitlines()[0][10:15] == "+2:05"


def test_a_finding_of_a_detector_is_told_as_diagnose_tells_it(training: Any) -> None:
    run = training().run
    evidence = {"onset": 1614, "fraction": 0.2091, "wait_seconds": 0.009833, "step_seconds": 0.047, "workers": 2}
    run.journal.write("finding", code="slow-loading", severity="warning", step=1900, rank=0, evidence=evidence)
    said = "slow data loading [slow-loading]: 21 % of each step is spent waiting for data, 10 ms per step"
    assert said in told(run, None)


@pytest.mark.parametrize("width", [40, 60, 200])
def test_other_widths_are_kept_too(training: Any, width: int) -> None:
    a_bad_day(run := training().run)
    assert max(map(len, told(run, width).splitlines())) <= max(width, 38 + 24)


def test_in_a_pipe_each_entry_is_one_line_and_a_critical_finding_ends_with_1(holdfast: Any, training: Any) -> None:
    a_bad_day(training().run)
    done = holdfast("journal")
    assert (done.code, done.err) == (1, "") and len(done.out.splitlines()) == 7
    assert "\x1b" not in done.out


def test_without_a_critical_finding_it_ends_with_0(holdfast: Any, training: Any) -> None:
    run = training().run
    run.journal.write("finding", code="slow-loading", severity="warning", step=3, rank=0, evidence={})
    roll_back(run, ("done", 0))
    assert holdfast("journal").code == 0 and holdfast("journal", "--json").code == 0


def test_an_empty_journal_is_said_on_stderr(holdfast: Any, training: Any) -> None:
    training("digits")
    done = holdfast("journal")
    assert (done.code, done.out, done.err) == (0, "", "nothing in the journal of digits\n")
    assert json.loads(holdfast("journal", "--json").out) == []


def test_a_journal_that_cannot_be_read_ends_with_2_and_a_fix(holdfast: Any, training: Any) -> None:
    training().run.journal.path.mkdir()
    done = holdfast("journal")
    assert done.code == 2 and "cannot be read" in done.err and "  fix: " in done.err


def test_kind_and_last_choose_lines_and_not_the_exit_code(holdfast: Any, training: Any) -> None:
    a_bad_day(training().run)
    actions = holdfast("journal", "--kind", "action")
    assert [line.split()[4] for line in actions.out.splitlines()] == ["done", "done"] and actions.code == 1
    assert words(holdfast("journal", "--last", "1").out) == ["step 950  change     deep supervision"]
    assert holdfast("journal", "--kind", "nonsense").code == 2


def test_json_has_every_entry_as_it_was_written_and_its_words(holdfast: Any, training: Any) -> None:
    a_bad_day(run := training().run)
    entries = json.loads(holdfast("journal", "--json").out)
    assert len(entries) == len(list(run.journal)) == 8
    assert entries[1]["evidence"]["loss"] == "nan" and entries[1]["words"].startswith("non-finite gradient in encoder.2.weight")
    assert [entry["state"] for entry in json.loads(holdfast("journal", "--json", "--kind", "action").out)] == [
        "done",
        "posted",
        "done",
    ]
    assert len(json.loads(holdfast("journal", "--json", "--last", "2").out)) == 2


def test_ranks_that_tell_the_same_are_one_line_that_says_how_many(training: Any) -> None:
    run = training(rank=0).run
    training(rank=1)
    bad_update(run, rank=0, loss=0.51, input="finite")
    bad_update(run, rank=1)
    roll_back(run, ("posted", None), ("done", 0), ("done", 1))
    run.journal.write("finding", code="slow-loading", severity="warning", step=950, rank=1, evidence={})
    shown = words(told(run, None))
    assert len(shown) == 4
    assert shown[0].startswith("step 412  2 ranks  critical") and shown[0].endswith("numbers of rank 1")
    assert "→ nan" in shown[0] and "field 0 holds 3 NaN" in shown[0]  # of the rank that was to blame
    assert shown[1].startswith("step 412  2 ranks  done") and shown[2].startswith("step 900  2 ranks  done")
    assert shown[3].startswith("step 950   rank 1  warning")


def test_the_same_step_after_a_roll_back_is_told_again(training: Any) -> None:
    run = training().run
    bad_update(run)
    bad_update(run)
    assert len(Folding(run.journal).events) == 4


def test_an_action_is_posted_then_done_or_refused_and_ranks_may_disagree(training: Any) -> None:
    run = training().run
    roll_back(run, ("posted", None))
    assert "posted     will roll back to step 850, learning rate x 0.75 for 50 steps" in told(run)
    roll_back(run, ("done", 0), ("refused", 1))
    run.journal.path.write_text(run.journal.path.read_text().replace("restored the snapshot in 0.31 s", "no snapshot"))
    (event,) = Folding(run.journal).events
    assert event.state == "refused"
    said = "could not roll back to step 850, learning rate x 0.75 for 50 steps, because loss-divergence: no snapshot;"
    assert sentence(event) == f"{said} done on rank 0"


def test_what_was_done_before_it_was_said_to_be_posted_is_still_one_action(training: Any) -> None:
    run = training().run
    roll_back(run, ("done", 0), ("posted", None))
    assert [event.state for event in Folding(run.journal).events] == ["done"]


def test_every_action_that_exists_has_words_and_so_has_every_documented_finding() -> None:
    assert set(ACTIONS) == set(KINDS)
    assert all(FINDINGS.values()) and {"loss-spike", "holdfast-degraded", "hang"} <= set(FINDINGS)


@every_case(
    ("settings", "said"),
    [
        ({"action": "clip", "settings": {"max_norm": 2.5, "steps": 100}}, "gradients clipped at 2.5 for 100 steps"),
        ({"action": "clip", "settings": {"max_norm": 2.5, "steps": 1}}, "gradients clipped at 2.5"),
        (
            {"action": "lower-lr", "settings": {"factor": 0.8, "warmup_steps": 50}},
            "learning rate changed, x 0.8, warm-up of 50 steps",
        ),
        ({"action": "shrink-micro-batch", "settings": {"parts": 2}}, "batches split into 2 parts"),
        ({"action": "save-checkpoint"}, "checkpoint saved"),
        ({"action": "stop", "settings": {"why": "no way back", "code": 1}}, "training stopped: no way back, code 1"),
        ({"action": "sing-a-song", "settings": {"key": "C"}, "because": "joy"}, "sing a song, key C, because joy"),
    ],
)
def test_actions_are_told_with_their_numbers(settings: dict[str, Any], said: str) -> None:
    (event,) = Folding([{"kind": "action", "step": 3, "state": "done", "rank": 0, **settings}]).events
    assert sentence(event) == said


VALUES = [
    None,
    True,
    -1,
    2**70,
    math.nan,
    "x\x1b[31m\ny",
    "ü" * 200,
    [],
    [1, [2], {"a": None}] * 5,
    {},
    {"deep": {"er": [1]}},
    1e-9,
]
NAMES = (
    *(
        "time",
        "kind",
        "code",
        "action",
        "severity",
        "step",
        "rank",
        "state",
        "number",
        "because",
        "settings",
        "evidence",
        "detail",
    ),
    *("causes", "findings", "what", "onset", "batch", "input", "parameter", "loss", "loss_before", "error", "to", "max_norm"),
)


def test_no_row_however_odd_breaks_the_display(training: Any, holdfast: Any) -> None:
    chance = random.Random(0)
    run = training().run
    for kind in ("finding", "action", "diagnosis", "change", "else", 7, None) * 60:
        row = {name: chance.choice(VALUES) for name in chance.sample(NAMES, 8)} | {"kind": kind}
        row |= {name: {key: chance.choice(VALUES) for key in chance.sample(NAMES, 6)} for name in ("settings", "evidence")}
        with run.journal.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
    shown = told(run)
    assert shown and "\x1b" not in shown
    for verb in (
        ("journal",),
        ("journal", "--json"),
        ("ps",),
        ("ps", "--json"),
        ("tail", "--once"),
        ("tail", "--once", "--json"),
    ):
        assert holdfast(*verb).err == "", verb


def test_follow_tells_what_comes_and_ends_with_the_run(command: list[str], training: Any) -> None:
    run = training().run
    bad_update(run, 5)
    with subprocess.Popen([*command, "journal", "--follow"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = [process.stdout.readline() for _ in range(2)]
        roll_back(run, ("posted", None), ("done", 0))
        then = process.stdout.readline()
        run.update_info(ended=time.time(), exit_code=0)
        rest = process.stdout.read()
    assert [line.split()[3] for line in first] == ["5", "5"]
    assert "done       rolled back to step 850" in then and rest == "" and process.returncode == 1


def test_a_reader_takes_whole_lines_only_and_skips_torn_ones(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    reader = JournalReader(path)
    assert reader.new_rows() == []
    path.write_bytes(b'{"kind": "finding"}\n{"kind": "act')
    assert [row["kind"] for row in reader.new_rows()] == ["finding"]
    with path.open("ab") as file:
        file.write(b'ion"}\n{"torn": \n[1]\n{"kind": "change"}\n')
    assert [row["kind"] for row in reader.new_rows()] == ["action", "change"] and reader.new_rows() == []


def test_a_feed_waits_for_the_other_ranks_and_tells_a_new_state_once(training: Any) -> None:
    run = training().run
    reader = JournalReader(run.journal.path)
    feed = Feed(reader, settle=0.05)
    bad_update(run, rank=0)
    assert feed.new_events() == []
    bad_update(run, rank=1)
    roll_back(run, ("posted", None))
    feed.new_events()
    time.sleep(0.06)
    assert [(event.kind, len(event.ranks), event.state) for event in feed.new_events()] == [
        ("finding", 2, ""),
        ("action", 2, "done"),
        ("action", 0, "posted"),
    ]
    roll_back(run, ("done", 0), ("done", 1))
    bad_update(run, rank=2)  # late, but nothing new
    assert [event.state for event in feed.new_events(all_of_them=True)] == ["done"]
    assert feed.new_events(all_of_them=True) == []


@every_case(("seconds", "text"), [(-3, "+0:00"), (125, "+2:05"), (8045, "+2:14:05"), (3 * 86400 + 60, "+3 d 00:01:00")])
def test_the_time_since_the_start_is_a_clock(seconds: float, text: str) -> None:
    assert after(seconds) == text
