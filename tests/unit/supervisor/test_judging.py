from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.recovery import judge as judge_module
from holdfast.signals.pulse import MAGIC, NAME, TRAINING
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.judging import Judging, is_ours, make_judge


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path, "a", policy="heal")


def diverge(run: RunFolder) -> Recorder:
    recorder = Recorder.start(run, 0)
    random = np.random.default_rng(0)
    loss = [*(0.2 + 2.1 * np.exp(-np.arange(400) / 40)) * np.exp(0.1 * random.standard_normal(400)), *np.full(40, 2.5)]
    for step, value in enumerate(loss):
        given = {"step": step, "loss": float(value), "skipped": 0}
        recorder.table("steps").append([given.get(column.name, column.kind.missing) for column in TABLES["steps"].columns])
    return recorder


def wait_until(holds: Callable[[], bool], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert holds()


def test_a_run_is_judged_while_it_lives(run: RunFolder) -> None:
    recorder = diverge(run)
    judging = Judging(run, Trouble(run.journal), hurry=threading.Event())
    judging.start()
    deadline = time.monotonic() + 600
    while not (run.path / "action_queue.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    judging.finish()
    recorder.close()
    assert not judging.busy
    assert {row["kind"] for row in run.journal} >= {"finding", "diagnosis", "action"}


def test_a_short_run_gets_a_last_look_and_no_letter(run: RunFolder) -> None:
    judging = Judging(run, Trouble(run.journal), hurry=threading.Event())
    recorder = diverge(run)
    judging._stop.set()
    judging.start()
    judging.finish()
    recorder.close()
    assert "loss-divergence" in [row.get("code") for row in run.journal]
    assert not (run.path / "action_queue.jsonl").exists()


@pytest.mark.parametrize(
    ("policy", "steps", "reported", "judged"),
    [
        ("observe", 20, False, False),
        ("guard", 20, False, False),
        ("observe", 32, False, True),
        ("observe", 20, True, True),
        ("heal", 20, False, True),
        ("observe", None, False, True),  # a training whose pulse could not be written
    ],
)
def test_a_run_of_a_few_steps_is_judged_only_if_something_was_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, steps: int | None, reported: bool, judged: bool
) -> None:
    run, looks = RunFolder.create(tmp_path, "short", policy=policy), []
    monkeypatch.setattr(judge_module.Judge, "look", lambda _, *, act: looks.append(act))
    recording = run.claim(0)
    if steps is not None:
        (recording.path / NAME).write_bytes(struct.pack("<qqqqqdd8x", MAGIC, 1, steps, 1, TRAINING, 0.0, 0.0))
    if reported:
        run.journal.write("finding", code="non-finite-loss", severity="critical", step=3)
    judging = Judging(run, Trouble(run.journal), hurry=threading.Event())
    judging._stop.set()
    judging.start()
    judging.finish()
    assert not judging.busy and looks == ([False] if judged else [])


def test_a_judge_that_fails_is_told_once_and_ends_nothing(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("lost my mind")

    monkeypatch.setattr(judge_module.Judge, "look", fail)
    run.claim(0)
    judging = Judging(run, Trouble(run.journal), hurry=threading.Event())
    judging.start()
    time.sleep(0.5)
    judging.finish()
    (entry,) = run.journal
    assert entry["code"] == "holdfast-degraded" and "lost my mind" in entry["evidence"]["error"]


def test_a_disk_that_fails_for_a_while_is_told_and_judged_on_after_it(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []

    def fail_twice(judge: Any, *, act: bool = True) -> None:
        looks.append(act)
        if len(looks) < 3:
            raise OSError(116, "Stale file handle")

    monkeypatch.setattr(judge_module.Judge, "look", fail_twice)
    run.claim(0)
    judging = Judging(run, Trouble(run.journal), hurry=threading.Event())
    judging.start()
    wait_until(lambda: len(looks) > 3)
    judging.finish()
    entry, *_ = run.journal
    assert entry["code"] == "holdfast-degraded" and "Stale file handle" in entry["evidence"]["error"]
    assert looks[-1] is False, "the last look, too"


def test_a_journal_that_cannot_be_written_for_a_while_costs_no_finding_and_no_action(run: RunFolder) -> None:
    run.journal.path.mkdir()
    recorder = diverge(run)
    trouble = Trouble(run.journal)
    judging = Judging(run, trouble, hurry=threading.Event())
    judging.start()
    wait_until(lambda: bool(trouble._counts))
    time.sleep(0.5)
    run.journal.path.rmdir()
    wait_until((run.path / "action_queue.jsonl").exists)
    judging.finish()
    recorder.close()
    trouble.write_pending()
    told = [row.get("code") for row in run.journal]
    assert told.count("loss-divergence") == 1 and "holdfast-degraded" in told


def test_a_policy_file_that_cannot_be_used_leaves_the_run_observed(run: RunFolder) -> None:
    run.update_info(policy="nowhere.py")
    recorder = diverge(run)
    make_judge(run, Trouble(run.journal)).look()
    recorder.close()
    assert [row.get("code") for row in run.journal][:1] == ["holdfast-degraded"]
    assert "loss-divergence" in [row.get("code") for row in run.journal] and not (run.path / "action_queue.jsonl").exists()


def test_a_rule_may_heal_one_thing_in_a_run_that_is_observed(run: RunFolder) -> None:
    run.update_info(policy="observe", rules={"loss-divergence": "heal"})
    recorder = diverge(run)
    make_judge(run, Trouble(run.journal)).look()
    recorder.close()
    assert (run.path / "action_queue.jsonl").exists()


def test_a_run_that_never_trains_is_left_alone(run: RunFolder) -> None:
    judging = Judging(run, Trouble(run.journal), hurry=threading.Event())
    judging.start()
    judging.finish()
    assert list(run.journal) == [] and not judging.busy


@pytest.mark.parametrize(("host", "letters"), [("elsewhere", False), (None, True)])
def test_of_several_machines_that_share_the_folder_the_one_with_the_lowest_rank_judges(
    run: RunFolder, host: str | None, letters: bool
) -> None:
    recorder = diverge(run)
    path = recorder.recording.path / "process.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": host}))
    other = Recorder.start(run, 4)
    judging = Judging(run, Trouble(run.journal), hurry=threading.Event())
    judging.start()
    deadline = time.monotonic() + (20 if letters else 4)
    while not (run.path / "action_queue.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    judging.finish()
    recorder.close()
    other.close()
    assert (run.path / "action_queue.jsonl").exists() == letters and bool(list(run.journal)) == letters


def test_of_nodes_that_one_of_them_leads_that_one_judges_wherever_rank_0_is(run: RunFolder) -> None:
    recorder = Recorder.start(run, 0)
    path = recorder.recording.path / "process.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "elsewhere"}))
    recorder.close()
    assert not is_ours(run)
    run.update_info(nodes=2)  # only `holdfast run` of node 0 has a judge at all
    assert is_ours(run)
