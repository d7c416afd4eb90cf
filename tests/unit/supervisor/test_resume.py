"""From which checkpoint the next attempt goes on, and how it is told."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from every_case import every_case

from holdfast.checkpoints.manifest import MANIFEST
from holdfast.checkpoints.write import Tensors, begin_checkpoint, write_checkpoint
from holdfast.errors import UsageError
from holdfast.inside.control.restarted import read
from holdfast.recovery.restart import Changes
from holdfast.signals.lineage import mark_of
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES
from holdfast.supervisor.resume import Origin, arguments, confirmed, environment, find_origin, names_in
from holdfast.supervisor.set_aside import set_aside, set_damaged_aside, set_undone_aside


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "runs", "a", started=0.0)


def save(path: Path, step: int, at: float, *, bad: bool = False, optimizer: bool = True) -> None:
    weights = torch.full((4,), float("nan") if bad else 1.0)
    state = {"model": {"weight": weights}, "step": step}
    state |= {"optimizer": {"state": {0: {"momentum_buffer": torch.ones(4)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}}
    torch.save(state if optimizer else {"weight": weights}, path)
    os.utime(path, (at, at))


def told(run: RunFolder, path: Path) -> None:
    run.journal.write("checkpoint", event="saved", path=str(path), step=1)


def test_the_newest_one_that_is_whole_and_finite_and_can_be_gone_on_from_is_chosen(run: RunFolder, tmp_path: Path) -> None:
    save(tmp_path / "step-10.pt", 10, 100.0)
    save(tmp_path / "step-20.pt", 20, 200.0)
    save(tmp_path / "step-30.pt", 30, 300.0, bad=True)
    (tmp_path / "step-40.pt").write_bytes((tmp_path / "step-20.pt").read_bytes()[:-300])
    save(tmp_path / "best.pt", 50, 500.0, optimizer=False)
    told(run, tmp_path / "step-10.pt")
    found = find_origin(run)
    assert (found.path, found.step) == (tmp_path / "step-20.pt", 20)


def test_a_file_that_was_saved_under_another_name_and_renamed_is_found(run: RunFolder, tmp_path: Path) -> None:
    save(tmp_path / "last.pt", 60, 100.0)
    told(run, tmp_path / "last.tmp")
    assert find_origin(run).path == tmp_path / "last.pt"


def test_a_kill_in_the_middle_of_a_save_leaves_the_one_before(run: RunFolder, tmp_path: Path) -> None:
    save(tmp_path / "last.pt", 60, 100.0)
    (tmp_path / "last.tmp").write_bytes((tmp_path / "last.pt").read_bytes()[:-300])  # newer, and the name that was told
    told(run, tmp_path / "last.tmp")
    assert (find_origin(run).path, find_origin(run).step) == (tmp_path / "last.pt", 60)


@pytest.mark.parametrize("killed", ["before its files were there", "before its manifest", "while a file was written"])
def test_a_kill_while_a_state_is_kept_leaves_the_one_before(run: RunFolder, killed: str) -> None:
    """What the guard keeps: killed at each stage of the next one, and even if a folder was renamed without all its bytes."""
    parts = {"weights": Tensors({"w": torch.ones(64)}), "training": {"optimizers": [{"state": {}}]}}
    folder = run.path / "checkpoints"
    before = write_checkpoint(folder, 20, parts, made_by="guard")
    if killed == "before its files were there":
        begin_checkpoint(folder, 40)
    else:
        torn = write_checkpoint(folder, 40, parts, made_by="guard")
        if killed == "before its manifest":
            (torn / MANIFEST).unlink()
        else:
            weights = torn / "weights.safetensors"
            weights.write_bytes(weights.read_bytes()[:-40])
    found = find_origin(run)
    assert (found.kept, found.kept_step, found.path) == (before, 20, None)


def test_after_numbers_went_wrong_only_what_was_saved_before_counts(run: RunFolder, tmp_path: Path) -> None:
    for step in (10, 20):
        save(tmp_path / f"step-{step}.pt", step, 100.0 * step)
    told(run, tmp_path / "step-10.pt")
    assert find_origin(run, before=15).step == 10


def test_files_from_before_the_run_are_not_its_checkpoints(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs", "a", started=1000.0)
    save(tmp_path / "pretrained.pt", 5, 100.0)
    told(run, tmp_path / "last.tmp")
    assert find_origin(run) == Origin()


def test_a_checkpoint_that_tells_no_step_has_that_of_the_journal_or_of_the_moment_it_was_written(
    run: RunFolder, tmp_path: Path
) -> None:
    recorder = Recorder.start(run, 0)
    for step in range(30):
        known = {"step": step, "time": 100.0 + step}
        recorder.table("steps").append([known.get(column.name, column.kind.missing) for column in TABLES["steps"].columns])
    recorder.close()
    path = tmp_path / "epoch-2.pt"
    state = {"model": {"weight": torch.ones(4)}, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}, "epoch": 2}
    torch.save(state, path)
    os.utime(path, (119.5, 119.5))
    told(run, path)
    assert find_origin(run).step == 20
    run.journal.write("checkpoint", event="saved", path=str(path), step=18, mark=mark_of(path))
    assert find_origin(run).step == 18


def test_a_file_without_a_model_is_nothing_to_resume_from(run: RunFolder, tmp_path: Path) -> None:
    save(tmp_path / "last.pt", 10, 100.0)
    torch.save({"state": {0: {"momentum_buffer": torch.ones(4)}}, "param_groups": [{"lr": 0.1}]}, tmp_path / "optimizer.pt")
    told(run, tmp_path / "last.pt")
    assert find_origin(run).path == tmp_path / "last.pt"


def test_how_a_script_resumes_is_remembered_for_that_script_until_it_is_taken_back(tmp_path: Path) -> None:
    def ran(name: str, started: float, script: str, content: str, words: str | None) -> None:
        command = ["python", script]
        RunFolder.create(tmp_path, name, started=started, command=command, cwd="/p", script=content, resume_args=words)

    mine = {"command": ["python", "train.py", "--lr", "1"], "cwd": "/p", "script": "aa"}
    ran("a", 1.0, "train.py", "aa", "--resume {checkpoint}")
    ran("b", 2.0, "train.py", "bb", None)
    ran("c", 3.0, "other.py", "cc", "--from {checkpoint}")
    assert confirmed(tmp_path, mine) == "--resume {checkpoint}"
    assert confirmed(tmp_path, {**mine, "cwd": "/copied"}) == "--resume {checkpoint}"
    assert confirmed(tmp_path, {**mine, "cwd": "/another", "script": "dd"}) is None
    ran("d", 4.0, "train.py", "aa", "")
    assert confirmed(tmp_path, mine) == ""


def test_a_template_becomes_words_and_none_while_something_is_missing() -> None:
    facts = {"checkpoint": Path("a b/last.pt"), "workers": None}
    assert arguments("--resume {checkpoint}", facts, needs="checkpoint") == ["--resume", "a b/last.pt"]
    assert arguments("--workers {workers}", facts) == []
    assert arguments(None, facts) == []
    assert arguments("--again", {"checkpoint": None}, needs="checkpoint") == []


@every_case("template", ["--from {file}", "--resume {checkpoint", "{}"])
def test_a_template_that_cannot_be_read_is_refused_in_words(template: str) -> None:
    with pytest.raises(UsageError):
        names_in(template)


def test_the_environment_holds_what_is_known_and_no_more(tmp_path: Path) -> None:
    said = environment(RunFolder(tmp_path), Origin(Path("/a/last.pt"), 60), Changes(workers=2, lr_factor=0.5), 2)
    assert said == {
        "HOLDFAST_ATTEMPT": "2",
        "HOLDFAST_CHECKPOINT": "/a/last.pt",
        "HOLDFAST_CHECKPOINT_STEP": "60",
        "HOLDFAST_WORKERS": "2",
        "HOLDFAST_LR_FACTOR": "0.5",
    }


def test_the_environment_tells_the_steps_of_all_that_the_script_has_saved_lately(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs", "a", started=0.0)
    for name, step in (("best.pt", 18), ("last.pt", 24)):
        torch.save({"weight": torch.full((3,), float(step))}, tmp_path / name)
        row = {"event": "saved", "path": str(tmp_path / name), "step": step, "mark": mark_of(tmp_path / name)}
        run.journal.write("checkpoint", **row)
    said = environment(run, Origin(tmp_path / "best.pt", 18), Changes(), 2)
    assert json.loads(said["HOLDFAST_SAVED"]) == {str(tmp_path / "last.pt"): 24, str(tmp_path / "best.pt"): 18}
    assert read(said | {"HOLDFAST_RUN": str(run.path)}).saved[str(tmp_path / "last.pt")] == 24


@every_case(
    ("message", "moves"),
    [
        ("ValueError: Files ['a.pt'] are already present in the directory {out}. Pass require_empty=False.", True),
        ("RuntimeError: output folder 'out' is not empty", True),
        ("ValueError: {out} has no labels", False),
        ("ValueError: /data/outlines is not empty", False),
    ],
    ids=["its path", "its name", "another error", "another folder"],
)
def test_checkpoints_are_moved_only_out_of_the_folder_that_is_refused(
    run: RunFolder, tmp_path: Path, message: str, moves: bool
) -> None:
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    save(out / "a.pt", 10, 100.0)
    told(run, out / "a.pt")
    (out / "notes.txt").write_text("not ours")
    moved = set_aside(run, message.format(out=out), 1)
    assert moved == (out / "attempt-1" if moves else None)
    assert (out / "attempt-1/a.pt").exists() is moves and (out / "a.pt").exists() is not moves and (out / "notes.txt").exists()
    shutil.rmtree(out / "attempt-1", ignore_errors=True)


def test_what_was_moved_earlier_is_not_replaced(run: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "attempt-1").mkdir(parents=True)
    (out / "attempt-1" / "a.pt").write_text("of the run that this one resumes")
    save(out / "a.pt", 10, 100.0)
    told(run, out / "a.pt")
    assert set_aside(run, f"{out} is not empty", 1) == out / "attempt-2"
    assert (out / "attempt-1" / "a.pt").read_text() == "of the run that this one resumes"


def test_saves_from_after_the_trouble_are_moved_but_not_what_the_script_began_with(run: RunFolder, tmp_path: Path) -> None:
    for name, step in (("early.pt", 10), ("late.pt", 30), ("begun-with.pt", 30)):
        save(tmp_path / name, step, 100.0 + step)
        run.journal.write("checkpoint", event="saved", path=str(tmp_path / name), step=step, mark=mark_of(tmp_path / name))
    run.journal.write("checkpoint", event="loaded", path=str(tmp_path / "begun-with.pt"))
    assert set_undone_aside(run, 20) == tmp_path / "undone/attempt-1/late.pt"
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["begun-with.pt", "early.pt"]
    assert set_undone_aside(run, 20) is None, "it is moved once"


def unreadable(run: RunFolder, path: Path, at: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"PK")
    os.utime(path, (at, at))
    run.journal.write("checkpoint", event="unreadable", path=str(path), error="RuntimeError: not a ZIP archive")


def test_a_damaged_file_is_moved_and_the_ones_beside_it_stay(run: RunFolder, tmp_path: Path) -> None:
    save(tmp_path / "out-1.pt", 10, 100.0)
    told(run, tmp_path / "out-1.pt")
    unreadable(run, tmp_path / "out-2.pt", 200.0)
    assert set_damaged_aside(run, 0.0) == tmp_path / "damaged/attempt-1/out-2.pt"
    assert (tmp_path / "damaged/attempt-1/out-2.pt").exists() and (tmp_path / "out-1.pt").exists()
    assert [row["path"] for row in run.journal if row.get("event") == "set-aside"] == [str(tmp_path / "out-2.pt")]


@every_case("older", [False, True], ids=["a save of its own", "a folder with something older in it"])
def test_a_folder_is_moved_if_it_is_one_save_of_several(run: RunFolder, tmp_path: Path, older: bool) -> None:
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    (tmp_path / "out/save-1").mkdir(parents=True)
    save(tmp_path / "out/save-1/model.pt", 10, 100.0)
    told(run, tmp_path / "out/save-1/model.pt")
    later = time.time() + 60
    unreadable(run, tmp_path / "out/save-2/model.pt", later)
    (tmp_path / "out/save-2/notes.txt").write_text("of the same save")
    os.utime(tmp_path / "out/save-2/notes.txt", (50.0, 50.0) if older else (later, later))
    moved = set_damaged_aside(run, 0.0)
    assert moved == tmp_path / ("out/save-2/damaged/attempt-1/model.pt" if older else "out/damaged/attempt-1/save-2")
    assert moved.exists() and (tmp_path / "out/save-1/model.pt").exists()


def test_a_damaged_file_of_somebody_else_stays_where_it_is(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "runs", "b", started=500.0)
    unreadable(run, tmp_path / "pretrained.pt", 400.0)
    assert set_damaged_aside(run, 0.0) is None and (tmp_path / "pretrained.pt").exists()
