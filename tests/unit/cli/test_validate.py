"""`holdfast validate` as it is typed: answers, exit codes, and the files it writes."""

from __future__ import annotations

import json
from pathlib import Path

import made_data as made
import pytest
import yaml
from typer.testing import CliRunner, Result

from holdfast import read_quarantine
from holdfast.cli.app import app


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))


def typed(*words: object) -> Result:
    return CliRunner().invoke(app, ["validate", *map(str, words)])


def with_faults(folder: Path) -> Path:
    """One critical fault, one warning."""
    made.yolo(folder)
    made.write(folder / "labels/train/train03.txt", made.yolo_line(0, 4, 4, 4, 4))
    (folder / "labels/train/train05.txt").unlink()
    return folder


def test_sound_data_exits_0_and_says_so(tmp_path: Path) -> None:
    made.yolo(tmp_path / "set")
    answer = typed(tmp_path / "set")
    assert answer.exit_code == 0
    assert "yolo, 46 images (train 24 · val 22)" in " ".join(answer.stdout.split())
    assert "no problems found" in answer.stderr


def test_something_critical_exits_1_with_the_place_and_the_fix(tmp_path: Path) -> None:
    answer = typed(with_faults(tmp_path / "set"))
    assert answer.exit_code == 1
    for words in ("box-zero-area", "boxes with zero area: 1", "labels/train/train03.txt:1", "fix: remove them", "label-missing"):
        assert words in answer.stdout
    assert "1 critical, 1 warning" in answer.stderr


def test_warnings_count_only_with_strict(tmp_path: Path) -> None:
    made.yolo(tmp_path / "set")
    (tmp_path / "set/labels/train/train05.txt").unlink()
    assert typed(tmp_path / "set").exit_code == 0
    assert typed(tmp_path / "set", "--strict").exit_code == 1


def test_json_holds_everything(tmp_path: Path) -> None:
    answer = typed(with_faults(tmp_path / "set"), "--json")
    row = json.loads(answer.stdout)
    assert answer.exit_code == 1 and row["format"] == "yolo" and row["samples"] == 46
    first = row["problems"][0]
    assert (first["code"], first["severity"], first["count"]) == ("box-zero-area", "critical", 1)
    assert first["files"] == ["labels/train/train03.txt"] and first["fix"] and first["example"]


def test_all_lists_every_case_with_its_file(tmp_path: Path) -> None:
    folder = with_faults(tmp_path / "set")
    made.write(folder / "labels/train/train04.txt", made.yolo_line(1, 4, 4, 4, 4) * 2)
    made.write(folder / "images/val/val01.jpg", (folder / "images/val/val00.jpg").read_bytes())
    places = [f"labels/train/train{number}.txt:{line}: " for number, line in (("03", 1), ("04", 1), ("04", 2))]
    plain, every = typed(folder).stdout, typed(folder, "--all").stdout
    assert [place in plain for place in places] == [True, False, False]
    assert all(place in every for place in places) and "e.g." not in every
    assert "images/val/val01.jpg matches images/val/val00.jpg" in every
    problems = json.loads(typed(folder, "--all", "--json").stdout)["problems"]
    cases = {problem["code"]: problem["cases"] for problem in problems}
    assert [case.split(" ")[0] + " " for case in cases["box-zero-area"]] == places
    assert cases["label-missing"] == ["images/train/train05.jpg: no label file"]


def test_all_names_the_rows_of_a_table(tmp_path: Path) -> None:
    rows = [f"{number * 0.37 % 1.3},{number % 2}" for number in range(60)]
    rows[7], rows[9] = "nan,1", "nan,0"
    made.write(tmp_path / "set/x.csv", "\n".join(["a,label", *rows]))
    assert (
        "x.csv: row 7\n" in typed(tmp_path / "set", "--all").stdout
        and "x.csv: row 9\n" in typed(tmp_path / "set", "--all").stdout
    )


def test_fix_writes_a_cleaned_set_that_validates_and_changes_nothing_else(tmp_path: Path) -> None:
    folder = with_faults(tmp_path / "set")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert typed(folder, "--fix").exit_code == 1
    assert all(path.read_bytes() == content for path, content in before.items())
    described = yaml.safe_load((folder / "data.cleaned.yaml").read_text())
    assert described["names"] == dict(enumerate(made.NAMES))
    again = typed(folder / "data.cleaned.yaml", "--json")
    row = json.loads(again.stdout)
    assert row["splits"] == {"train": 22, "val": 22}
    assert [problem["code"] for problem in row["problems"] if problem["severity"] != "info"] == []


@pytest.mark.parametrize("make", [made.voc, made.coco, made.masks, made.image_folder], ids=lambda make: make.__name__)
def test_fix_leaves_a_broken_image_out_in_every_format(make: object, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    make(folder)  # type: ignore[operator]
    broken = next(
        path for path in sorted(folder.rglob("train03.*")) if path.suffix in (".jpg", ".png") and path.parents[1].name != "masks"
    )
    broken.write_bytes(broken.read_bytes()[:300])
    typed(folder, "--fix-into", tmp_path / "out")
    written = "".join(path.read_text() for path in (tmp_path / "out").rglob("*.cleaned.*"))
    assert "train04" in written and "train03" not in written


def test_quarantine_lists_what_a_loader_should_skip(tmp_path: Path) -> None:
    folder = with_faults(tmp_path / "set")
    typed(folder, "--quarantine", tmp_path / "skip.txt")
    assert read_quarantine(tmp_path / "skip.txt") == {"images/train/train03.jpg", "images/train/train05.jpg"}


def test_quarantine_of_a_table_lists_rows(tmp_path: Path) -> None:
    made.table(tmp_path / "set", "csv", lambda tables: tables["train"]["a"].__setitem__([4, 9], float("nan")))
    assert typed(tmp_path / "set", "--quarantine", tmp_path / "skip.txt").exit_code == 1
    assert read_quarantine(tmp_path / "skip.txt") == {"train.csv:4", "train.csv:9"}


def test_a_leak_is_left_out_of_the_later_split_only(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    made.yolo(folder)
    (folder / "images/val/val02.jpg").write_bytes((folder / "images/train/train03.jpg").read_bytes())
    typed(folder, "--quarantine", tmp_path / "skip.txt")
    assert read_quarantine(tmp_path / "skip.txt") == {"images/val/val02.jpg"}


def test_html_is_one_page_with_the_problems(tmp_path: Path) -> None:
    typed(with_faults(tmp_path / "set"), "--html", tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "box-zero-area" in page and "labels/train/train03.txt" in page and "http" not in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "does not exist"),
        (("empty",), "not in a known format"),
        (("set", "--format", "yollo"), "unknown format yollo"),
        (("set", "--html", "nowhere/at/all.html"), "cannot write"),
    ],
)
def test_what_cannot_be_done_exits_2_with_a_fix(
    words: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    made.yolo(tmp_path / "set")
    answer = typed(*words)
    assert answer.exit_code == 2
    assert said in answer.stderr and "fix:" in answer.stderr


def test_a_second_run_says_that_nothing_changed(tmp_path: Path) -> None:
    made.yolo(tmp_path / "set")
    typed(tmp_path / "set")
    assert "nothing changed since the last run" in typed(tmp_path / "set").stderr
    assert "nothing changed" not in typed(tmp_path / "set", "--no-cache").stderr
