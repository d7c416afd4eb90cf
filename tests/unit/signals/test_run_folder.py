from __future__ import annotations

import json
from pathlib import Path

import pytest
from every_case import every_case

from holdfast.errors import NewerFormat, NotARunFolder
from holdfast.signals.run_folder import FORMAT, RunFolder


def test_a_run_is_found_again_with_what_was_said_about_it(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "runs", "first", command=["python", "train.py"])
    found = RunFolder.open(tmp_path / "runs" / "first")
    assert found == made
    assert found.info() == {"format": FORMAT, "name": "first", "command": ["python", "train.py"]}


def test_two_runs_with_one_name_keep_apart(tmp_path: Path) -> None:
    names = [RunFolder.create(tmp_path, "same", number=number).name for number in range(3)]
    assert names == ["same", "same-2", "same-3"]
    assert [RunFolder.open(tmp_path / name).info()["number"] for name in names] == [0, 1, 2]


def test_a_command_names_a_run_by_its_name_only_where_that_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for folder, target in (("runs", "a"), ("my runs", "'my runs/a'"), ("deep/runs", "deep/runs/a"), (".", "a")):
        assert RunFolder.create(Path(folder), "a").target == target
    assert RunFolder.create(tmp_path / "runs", "a").target == str(tmp_path / "runs" / "a")


def test_latest_points_to_the_newest_run(tmp_path: Path) -> None:
    RunFolder.create(tmp_path, "old")
    newest = RunFolder.create(tmp_path, "new")
    assert RunFolder.open(tmp_path / "latest") == newest
    assert not list(tmp_path.glob(".latest*"))


def test_ranks_that_join_one_run_share_its_folder(tmp_path: Path) -> None:
    first = RunFolder.join(tmp_path, "ddp", world_size=2)
    second = RunFolder.join(tmp_path, "ddp", world_size=99)
    assert first == second
    assert second.info()["world_size"] == 2


def test_trainings_of_one_rank_never_get_the_same_folder(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    claimed = [run.claim(rank) for rank in (0, 1, 0, 0, 10, 2)]
    assert len({recording.path for recording in claimed}) == 6
    assert [recording.name for recording in run.recordings()] == ["rank-0", "rank-0.1", "rank-0.2", "rank-1", "rank-2", "rank-10"]


def test_other_things_in_the_folder_are_no_recordings(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    for name in ("rank-x", "rank-0.tmp", "checkpoints", "host", "arank-0"):
        (run.path / name).mkdir()
    (run.path / "rank-3").touch()
    assert run.recordings() == []


def test_a_recording_whose_process_file_is_torn_still_opens(tmp_path: Path) -> None:
    recording = RunFolder.create(tmp_path, "run").claim(0)
    assert recording.info() == {}
    (recording.path / "process.json").write_text('{"pid": 12')
    assert recording.info() == {}
    (recording.path / "process.json").write_text('{"pid": 12}')
    assert recording.info() == {"pid": 12}


@every_case("content", [None, "", "{", "[]", "{}", "\x00\x01"])
def test_a_folder_that_is_no_run_is_refused_in_words(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(NotARunFolder, match="is not a run folder") as refused:
        RunFolder.open(tmp_path)
    assert "holdfast ps" in refused.value.fix


def test_a_run_of_a_newer_holdfast_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"format": FORMAT + 1}))
    with pytest.raises(NewerFormat, match=f"format {FORMAT + 1}") as refused:
        RunFolder.open(tmp_path)
    assert "upgrade" in refused.value.fix


def test_changing_what_is_said_about_a_run_keeps_the_rest_and_leaves_no_spare_file(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run", command=["a"])
    run.update_info(exit_code=1)
    assert run.info() == {"format": FORMAT, "name": "run", "command": ["a"], "exit_code": 1}
    assert [entry.name for entry in run.path.iterdir()] == ["run.json"]
