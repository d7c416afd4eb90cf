"""`holdfast visualize` as it is typed: its answers, and errors in words."""

from __future__ import annotations

import json
from pathlib import Path

import made_data as made
import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.app import app


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def typed(*words: object) -> Result:
    return CliRunner().invoke(app, ["visualize", *map(str, words)])


def test_it_says_what_was_drawn_and_where_and_finds_no_fault_with_that(tmp_path: Path) -> None:
    made.yolo(tmp_path / "set")
    made.write(tmp_path / "set/labels/train/train03.txt", made.yolo_line(0, 4, 4, 4, 4))
    answer = typed("set", "--samples", 8)
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.split("\n")[0].split() == ["critical", "box-zero-area", "1", "drawn"]
    assert "7 drawn without findings" in answer.stdout
    assert "wrote set-samples.html: 8 samples" in answer.stderr
    assert (tmp_path / "set-samples.html").is_file()


def test_as_json_every_sample_is_named_with_its_group(tmp_path: Path) -> None:
    made.table(tmp_path / "set", "csv")
    answer = json.loads(typed("set", "-n", 5, "--seed", 3, "-o", tmp_path / "to", "--class", 1, "--json").stdout)
    assert answer["samples"] == 5 and answer["seed"] == 3 and answer["page"] == str(tmp_path / "to")
    assert {tuple(row["classes"]) for row in answer["drawn"]} == {("1",)}
    assert [row["group"] for row in answer["drawn"]] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere",), "nowhere does not exist"),
        (("set", "--finding", "box-outside"), "box-outside was not found in set"),
        (("set", "--class", "cow"), "set has no class cow"),
        (("set", "-o", "set/page.html"), "is inside the data"),
        (("set", "--format", "paper"), "unknown format paper"),
    ],
)
def test_what_cannot_be_done_is_told_in_two_lines(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    made.image_folder(tmp_path / "set")
    answer = typed(*words)
    assert answer.exit_code == 2
    assert said in answer.stderr and "fix: " in answer.stderr and "Traceback" not in answer.stderr
