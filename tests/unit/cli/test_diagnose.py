"""`holdfast diagnose`, as it is typed."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app

OVERFITS = [(0.02 + 1.2 * math.exp(-n / 12), 0.5 + math.exp(-n / 5) + 0.012 * max(0, n - 12)) for n in range(60)]
LEARNS = [(0.02 + 1.2 * math.exp(-n / 12), 0.1 + 1.2 * math.exp(-n / 12)) for n in range(60)]


def write(path: Path, rows: list[tuple[float, float]]) -> Path:
    path.write_text("epoch,loss,val_loss\n" + "".join(f"{n},{a},{b}\n" for n, (a, b) in enumerate(rows)))
    return path


def diagnose(*words: str | Path) -> tuple[int, str]:
    answer = CliRunner().invoke(app, ["diagnose", *map(str, words)])
    return answer.exit_code, answer.output


def test_an_ill_run_is_told_with_its_evidence_its_cause_and_a_fix(tmp_path: Path) -> None:
    code, said = diagnose(write(tmp_path / "log.csv", OVERFITS))
    assert code == 1
    for words in (
        "worth a look",
        "overfitting",
        "best at epoch 13",
        "likely cause: too little data",
        "fix: use more augmentation",
    ):
        assert words in " ".join(said.split()), words


def test_a_healthy_run_ends_with_zero_and_a_single_line(tmp_path: Path) -> None:
    code, said = diagnose(write(tmp_path / "log.csv", LEARNS))
    assert code == 0 and "healthy" in said and len(said.strip().splitlines()) <= 2


def test_the_json_keeps_its_contract(tmp_path: Path) -> None:
    code, said = diagnose(write(tmp_path / "log.csv", OVERFITS), "--json")
    (run,) = json.loads(said)["runs"]
    assert code == 1
    assert set(run) == {"name", "source", "steps", "verdict", "findings", "diagnoses"} and run["verdict"] == "watch"
    (finding,) = run["findings"]
    assert set(finding) == {"code", "severity", "step", "epoch", "series", "evidence"} and finding["code"] == "overfitting"
    for diagnosis in run["diagnoses"]:
        assert set(diagnosis) == {"cause", "confidence", "because", "findings", "fixes"}
        assert 0 < diagnosis["confidence"] <= 1 and diagnosis["findings"] == ["overfitting"]
        assert all(set(fix) == {"text", "setting", "op", "value", "command"} for fix in diagnosis["fixes"])


def test_a_spike_says_whether_it_recovered(tmp_path: Path) -> None:
    rows = [*LEARNS]
    rows[40] = (3.0, 3.0)
    code, said = diagnose(write(tmp_path / "log.csv", rows), "--json")
    (finding,) = json.loads(said)["runs"][0]["findings"]
    assert code == 0 and finding["code"] == "loss-spike" and finding["evidence"]["recovered"] is True


def test_many_runs_get_a_line_each_and_what_is_no_log_is_said(tmp_path: Path) -> None:
    write(tmp_path / "good.csv", LEARNS)
    write(tmp_path / "bad.csv", OVERFITS)
    (tmp_path / "notes.txt").write_text("nothing here\n")
    code, said = diagnose(tmp_path)
    assert code == 1
    lines = [line for line in said.splitlines() if ".csv" in line]
    assert len(lines) == 2 and any("healthy" in line for line in lines)
    assert any("worth a look" in line and "overfitting" in line for line in lines), "the verdict is said as for a single run"
    assert "not read" in said and "notes.txt" in said


@pytest.mark.parametrize("content", [b"", b"\x00\x01" * 100, b"hello\n"])
def test_what_cannot_be_read_ends_with_two_and_says_why(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(content)
    code, said = diagnose(tmp_path / "x.log")
    assert code == 2 and "fix:" in said and "Traceback" not in said


def test_a_folder_without_logs_and_a_name_without_a_run_end_with_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert diagnose("empty")[0] == 2 and diagnose("nosuch")[0] == 2


def test_the_page_stands_by_itself_and_marks_what_was_found(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    code, _ = diagnose(write(tmp_path / "log.csv", OVERFITS), "--html", page)
    text = page.read_text(encoding="utf-8")
    assert code == 1 and text.count('class="holdfast-plot"') >= 1 and '"kind": "finding", "tone": "warn"' in text
    assert not re.findall(r'(?:src|href)="(?!data:|#)|@import|url\(', text)


def test_names_from_a_log_cannot_bring_code_into_the_page(tmp_path: Path) -> None:
    rows = "".join(f"{n},{a},{b}\n" for n, (a, b) in enumerate(OVERFITS))
    (tmp_path / "log.csv").write_text("epoch,loss,val_loss<script>alert(1)</script>\n" + rows)
    diagnose(tmp_path / "log.csv", "--html", tmp_path / "page.html")
    assert "<script>alert" not in (tmp_path / "page.html").read_text(encoding="utf-8")
