"""`holdfast diagnose --series`, and the flags that say which series is which."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from holdfast.cli.app import app


def diagnose(*words: str | Path) -> tuple[int, str]:
    answer = CliRunner().invoke(app, ["diagnose", *map(str, words)])
    return answer.exit_code, answer.stdout


def table(path: Path) -> Path:
    rows = "".join(f"{n},{1 / (n + 1)},{0.2 + 0.03 * n},{n / 60},0.001\n" for n in range(60))
    path.write_text("step,loss,held,score,lr\n" + rows)
    return path


def test_the_series_are_listed_with_their_roles(tmp_path: Path) -> None:
    code, said = diagnose("--series", table(tmp_path / "log.csv"))
    lines = [line.split() for line in said.splitlines()]
    assert code == 0
    assert ["loss", "loss", "*", "train", "lower", "60", "1", "0.01667"] in lines
    assert ["lr", "lr", "train", "–", "60", "0.001", "0.001"] in lines
    assert ["held", "other", "train", "–", "60", "0.2", "1.97"] in lines


def test_the_list_as_json_says_which_series_are_judged(tmp_path: Path) -> None:
    code, said = diagnose("--series", "--json", "--val-loss", "held", table(tmp_path / "log.csv"))
    (run,) = json.loads(said)["runs"]
    assert code == 0 and run["source"] == "csv"
    assert {row["name"]: row["used"] for row in run["series"]} == {
        "loss": "train-loss",
        "held": "val-loss",
        "lr": None,
        "score": None,
    }


def test_a_loss_that_is_named_by_a_flag_is_judged(tmp_path: Path) -> None:
    path = table(tmp_path / "log.csv")
    assert diagnose(path)[0] == 0
    code, said = diagnose("--json", "--val-loss", "held", path)
    assert code == 1 and "overfitting" in [finding["code"] for finding in json.loads(said)["runs"][0]["findings"]]


def test_a_metric_needs_its_direction_and_then_its_decline_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,score\n" + "".join(f"{n},{0.9 if n < 30 else 0.1}\n" for n in range(60)))
    assert diagnose("--metric", "score", path)[0] == 2
    code, said = diagnose("--json", "--metric", "score", "--higher-is-better", path)
    codes = [finding["code"] for finding in json.loads(said)["runs"][0]["findings"]]
    assert code == 1 and {"metric-collapse", "metric-decline"} & set(codes)
    assert diagnose("--metric", "score", "--lower-is-better", path)[0] == 0
