from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_live_run_shows_step_loss_rate_wait_cost_and_health(holdfast: Any, training: Any) -> None:
    training("digits", steps=51)
    done = holdfast("ps")
    assert done.code == 0 and done.err == ""
    header, row = lines(done.out)
    assert header == ["run", "rank", "pid", "step", "loss", "rate", "last", "step", "data", "cost", "health"]
    assert row[:6] == ["digits", "0", str(os.getpid()), "50", "0.01961", "10/s"]
    assert row[-5:] == ["30", "%", "0.40", "%", "healthy"]


def test_each_rank_has_a_line_and_the_sick_one_says_so(holdfast: Any, training: Any) -> None:
    training("ddp", rank=0)
    training("ddp", rank=1, loss=math.nan)
    _, first, second = lines(holdfast("ps").out)
    assert first[0] == "ddp" and first[1] == "0" and first[-1] == "healthy"
    assert second[0] == "1" and second[-2:] == ["non-finite", "loss"]


def test_it_finds_live_runs_from_any_folder(
    holdfast: Any, training: Any, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    training("digits")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert "digits" in holdfast("ps").out


def test_finished_runs_are_shown_only_with_all_and_after_the_live_ones(holdfast: Any, training: Any) -> None:
    training("over", live=False)
    training("alive")
    assert "over" not in holdfast("ps").out
    shown = lines(holdfast("ps", "--all").out)
    assert [row[0] for row in shown] == ["run", "alive", "over"] and shown[2][-1] == "finished"


def test_nothing_alive_is_said_on_stderr_with_what_to_type(holdfast: Any, training: Any) -> None:
    training("over", live=False)
    done = holdfast("ps")
    assert done.code == 0 and done.out == ""
    assert "holdfast run -- python train.py" in done.err and "holdfast ps --all" in done.err


def test_json_has_every_figure_of_every_rank(holdfast: Any, training: Any) -> None:
    training("digits", loss=math.inf)
    (run,) = json.loads(holdfast("ps", "--json").out)
    assert (run["name"], run["alive"], run["command"]) == ("digits", True, ["python", "train.py"])
    (rank,) = run["ranks"]
    assert rank["loss"] == "inf" and rank["step"] == 29 and rank["health"] == "non-finite loss"
    assert rank["budget"] == pytest.approx(0.004) and rank["data_share"] == pytest.approx(0.3)
    assert json.loads(holdfast("ps", "--json", "--all").out)


def test_json_of_nothing_is_an_empty_list(holdfast: Any) -> None:
    assert json.loads(holdfast("ps", "--json").out) == []


def test_a_run_that_cannot_be_read_does_not_hide_the_others(holdfast: Any, training: Any) -> None:
    training("digits")
    broken = Path("runs/broken")
    broken.mkdir()
    (broken / "run.json").write_text("{ half")
    assert "digits" in holdfast("ps", "--all").out
