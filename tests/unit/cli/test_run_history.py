"""What `choose` is told of a run of Holdfast's own: from its tables and its journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.cli.checkpoints.run_history import Seen, history_of_run, run_that_wrote, written_by
from holdfast.recovery.choosing.history import Change, Noted, Undone
from holdfast.signals.lineage import mark_of
from holdfast.signals.recorder import Recorder

Train = Callable[..., Recorder]


def evaluate(recorder: Recorder, step: int, value: float, name: str = "accuracy", split: str = "val") -> None:
    row = {"step": step, "split": recorder.strings.code(split), "name": recorder.strings.code(name), "value": value}
    table = recorder.table("evaluations")
    table.append([row.get(column.name, column.kind.missing) for column in table.table.columns])


def saved(recorder: Recorder, name: str, step: int, *, recording: str = "rank-0", content: Any = None) -> Path:
    """A file that the script saved, and the row about it."""
    path = Path(name).absolute()
    torch.save(content if content is not None else {"step": step}, path)
    row = {"event": "saved", "path": str(path), "step": step, "recording": recording, "mark": mark_of(path)}
    recorder.run.journal.write("checkpoint", **row)
    return path


def test_losses_learning_rates_and_metrics_come_from_the_tables(training: Train) -> None:
    recorder = training(steps=60, live=False)
    again = Recorder.start(recorder.run, 0)  # a second training in the same folder has made no step: it does not count
    history = history_of_run(recorder.run)
    again.close()
    assert history.last == 60 and len(history.losses) == 60 and history.losses[1] == (1, 0.5)
    assert history.rates == ((0, 0.01),) and history.judged and history.end == "finished normally"


def test_a_metric_is_named_by_its_data_and_known_to_be_better_high_or_low(training: Train) -> None:
    recorder = training()
    for step, value in ((10, 0.5), (20, 0.6)):
        evaluate(recorder, step, value)
        evaluate(recorder, step, 1 - value, "loss")
        evaluate(recorder, step, 0.99, "accuracy", "train")
    metrics = {series.name: series for series in history_of_run(recorder.run).metrics}
    assert set(metrics) == {"val/accuracy", "val/loss"}, "what is measured on the training data does not judge"
    assert metrics["val/accuracy"].points == ((10, 0.5), (20, 0.6)) and metrics["val/accuracy"].lower_is_better is False
    assert metrics["val/loss"].lower_is_better is True


def test_changes_come_with_the_learning_rate_that_was_proposed_for_them(training: Train) -> None:
    journal = (recorder := training()).run.journal
    journal.write("change", what="deep supervision", step=5, rank=0)
    journal.write("change", what="another colour", step=9, rank=0)
    journal.write(
        "diagnosis", step=12, causes=["setting-changed"], evidence={"what": "deep supervision", "factor": 0.6, "why": "grew"}
    )
    jumped = {"onset": 20, "lr_jumped_at": 18, "lr_before": 0.001, "lr": 0.1}
    journal.write("finding", code="loss-divergence", severity="critical", step=25, evidence=jumped)
    history = history_of_run(recorder.run)
    assert history.changes == (
        Change(5, "deep supervision", 0.6, "grew"),
        Change(9, "another colour"),
        Change(18, "the learning rate rose from 0.001 to 0.1"),
    )
    assert history.findings == (Noted(25, "loss-divergence", "critical", 20),)


def test_an_update_that_was_left_out_and_a_resume_that_came_back_are_not_held_against_the_run(training: Train) -> None:
    journal = (recorder := training()).run.journal
    journal.write("finding", code="non-finite-gradient", severity="critical", step=7, rank=0, evidence={})
    journal.write("action", action="skip-batch", step=7, state="done", because="non-finite-gradient", settings={}, rank=0)
    journal.write("finding", code="non-finite-gradient", severity="critical", step=8, rank=0, evidence={})
    journal.write("finding", code="resume-mismatch", severity="critical", step=9, evidence={})
    journal.write("checkpoint", event="resume-watch", verdict="explosion", came_back=True, step=20)
    assert [noted.step for noted in history_of_run(recorder.run).findings] == [8]


def test_roll_backs_are_told_with_where_they_went(training: Train) -> None:
    journal = (recorder := training()).run.journal
    for to, state, detail in (
        (10, "posted", ""),
        (10, "done", ""),
        ("disk", "done", "restored the state of step 4; …"),
        (3, "refused", ""),
    ):
        row = {"action": "roll-back", "step": 25, "because": "loss-divergence", "number": f"{to}", "at": 26, "rank": 0}
        journal.write("action", **row, settings={"to": to}, state=state, detail=detail)
    assert history_of_run(recorder.run).undone == (Undone(10, 26), Undone(4, 26))


def test_a_run_that_was_resumed_counts_on_from_there(training: Train) -> None:
    recorder = training(steps=30)
    source = saved(recorder, "before.pt", 4000, recording="rank-9")
    row = {"event": "resumed", "path": str(source), "step": 0, "recording": "rank-0", "at": 4000}
    recorder.run.journal.write("checkpoint", **row)
    recorder.run.journal.write("change", what="batch 32 -> 64", step=0)
    evaluate(recorder, 10, 0.5)
    later = saved(recorder, "later.pt", 20)
    history = history_of_run(recorder.run)
    assert history.last == 4030 and history.losses[0][0] == 4000 and history.changes[0].step == 4000
    assert history.metrics[0].points == ((4010, 0.5),)
    assert written_by(recorder.run) == {source.resolve(): Seen(4000, exact=True), later.resolve(): Seen(4020, exact=True)}


def test_a_file_that_was_saved_again_since_has_the_step_of_its_last_save(training: Train) -> None:
    recorder = training()
    saved(recorder, "last.pt", 10, content={"a": 1})
    path = saved(recorder, "last.pt", 20, content={"a": 2})
    assert written_by(recorder.run) == {path.resolve(): Seen(20, exact=True)}
    torch.save({"a": 3}, path)  # the journal does not tell every save of a path: its step is that of the table
    assert written_by(recorder.run) == {path.resolve(): Seen(30, exact=False)}
    path.unlink()
    assert written_by(recorder.run) == {}


def test_the_run_that_wrote_a_folder_of_checkpoints_is_found(training: Train) -> None:
    first, second = training("first"), training("second")
    Path("ckpts").mkdir()
    path, other = saved(first, "ckpts/1.pt", 10, content={"a": 1}), saved(second, "other.pt", 10, content={"a": 2})
    found, another = run_that_wrote([Path("ckpts/1.pt")]), run_that_wrote([other])
    assert found is not None and found.name == "first" and another is not None and another.name == "second"
    path.unlink()
    assert run_that_wrote([Path("ckpts/1.pt")]) is None


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"ended": 1.0, "exit_code": 0}, "finished normally"),
        ({"ended": 1.0, "exit_code": 137}, "was killed (SIGKILL)"),
        ({"ended": 1.0, "exit_code": 1}, "ended with exit 1"),
        ({}, "is still running"),
    ],
)
def test_how_a_run_came_to_its_end_is_told(training: Train, info: dict[str, Any], words: str) -> None:
    recorder = training()
    recorder.run.update_info(**info)
    assert history_of_run(recorder.run).end == words


def test_a_run_that_holdfast_stopped_says_why(training: Train) -> None:
    recorder = training(live=False)
    stop = {
        "action": "stop",
        "step": 20,
        "because": "metric-plateau",
        "settings": {"why": "it got no better"},
        "state": "done",
        "rank": 0,
    }
    recorder.run.journal.write("action", **stop)
    assert history_of_run(recorder.run).end == "was stopped by Holdfast: it got no better"


def test_a_run_folder_with_nothing_in_it_has_a_history_without_anything(training: Train) -> None:
    history = history_of_run(training(steps=0).run)
    assert history.last is None and history.losses == () and history.metrics == ()
