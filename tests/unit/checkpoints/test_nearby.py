"""A wrong path names what was probably meant, without searching the whole disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from every_case import every_case

from holdfast.checkpoints.formats import find
from holdfast.checkpoints.formats.find import candidates
from holdfast.checkpoints.formats.open import open_checkpoint
from holdfast.errors import NoCheckpoint, TargetError


def put(path: Path, *, age: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def near(path: str, here: Path, **options: int) -> list[str]:
    return [str(one) for one in candidates(Path(path), here=here, **options)]


def test_a_slip_in_the_name_finds_the_file_beside_it(tmp_path: Path) -> None:
    put(tmp_path / "runs/a/best.pt")
    put(tmp_path / "runs/a/last.pt")
    assert near("runs/a/bset.pt", tmp_path)[0] == "runs/a/best.pt"


def test_a_slip_in_a_folder_finds_the_same_file_in_the_folder_that_was_meant(tmp_path: Path) -> None:
    put(tmp_path / "runs/detect/train12/weights/best.pt")
    put(tmp_path / "runs/segment/other/weights/best.pt")
    assert near("runs/detect/train21/weights/best.pt", tmp_path)[0] == "runs/detect/train12/weights/best.pt"


@every_case("place", ["a.pt", "checkpoints/a.ckpt", "runs/x/a.pth", "outputs/a.safetensors", "weights/a.pt"])
def test_the_usual_folders_are_looked_at_wherever_the_path_points(tmp_path: Path, place: str) -> None:
    put(tmp_path / place)
    assert near("/nowhere/at/all/a.pt", tmp_path) == [place]


def test_lightning_and_yolo_put_theirs_deep(tmp_path: Path) -> None:
    put(tmp_path / "lightning_logs/version_3/checkpoints/epoch=1-step=20.ckpt")
    put(tmp_path / "runs/detect/train3/weights/last.pt")
    assert set(near("last.ckpt", tmp_path)) == {
        "lightning_logs/version_3/checkpoints/epoch=1-step=20.ckpt",
        "runs/detect/train3/weights/last.pt",
    }


def test_of_equal_names_the_newest_comes_first_and_at_most_five_are_named(tmp_path: Path) -> None:
    for number in range(8):
        put(tmp_path / f"runs/{number}/model.pt", age=number)
    assert near("model.pt", tmp_path) == [f"runs/{number}/model.pt" for number in range(5)]


def test_a_folder_that_is_a_checkpoint_is_named_and_not_its_files(tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors", "optimizer.pt", "trainer_state.json"):
        put(tmp_path / "out/checkpoint-500" / name)
    assert near("out/checkpoint-50", tmp_path) == ["out/checkpoint-500"]
    assert near("out/checkpoint-50/model.safetensors", tmp_path) == ["out/checkpoint-500/model.safetensors"]


def test_hidden_folders_and_what_belongs_to_python_are_not_looked_at(tmp_path: Path) -> None:
    put(tmp_path / ".cache/a.pt")
    put(tmp_path / "runs/env/site-packages/distutils.pth")
    assert near("a.pt", tmp_path) == []


def test_what_lies_above_the_current_folder_is_not_searched(tmp_path: Path) -> None:
    put(tmp_path / "other/a.pt")
    (tmp_path / "here").mkdir()
    assert near("a.pt", tmp_path / "here") == []


def test_links_in_a_circle_and_links_to_the_same_run_are_followed_once(tmp_path: Path) -> None:
    put(tmp_path / "runs/a/last.pt")
    (tmp_path / "runs/latest").symlink_to(tmp_path / "runs/a")
    (tmp_path / "runs/a/up").symlink_to(tmp_path / "runs")
    assert len(near("last.pt", tmp_path)) == 1


def test_the_search_is_bounded_in_names_and_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        put(tmp_path / f"runs/{number:02d}/a.pt")
    monkeypatch.setattr(find, "MOST_NAMES", 10)
    assert len(near("b.pt", tmp_path, most=100)) <= 10
    monkeypatch.undo()
    assert candidates(Path("b.pt"), here=tmp_path, seconds=-1) == []


def test_nothing_there_raises_with_the_candidates_as_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "runs/a/best.pt")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoCheckpoint) as caught:
        open_checkpoint(Path("runs/b/best.pt"))
    assert "there is no b in" in caught.value.problem and "runs/a/best.pt" in caught.value.fix
    assert isinstance(caught.value, TargetError)


def test_with_nothing_nearby_the_fix_says_what_was_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NoCheckpoint) as caught:
        open_checkpoint(Path("best.pt"))
    assert "none was found nearby" in caught.value.fix and "no such file or folder" in caught.value.problem


@every_case(
    ("name", "words"),
    [("x" * 5000, "no such file or folder"), ("a\0b", "no such file or folder"), ("a.pt/b.pt", "a.pt is not a folder")],
    ids=["too long", "no name", "a file for a folder"],
)
def test_a_path_that_cannot_be_is_an_answer_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str) -> None:
    monkeypatch.chdir(put(tmp_path / "a.pt").parent)
    with pytest.raises(NoCheckpoint, match=words):
        open_checkpoint(Path(name))
