"""Folders: which runs are in them, each counted once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.errors import LogUnreadable
from holdfast.logs.open import open_log
from holdfast.logs.search import find_logs
from holdfast.logs.series_choice import SeriesChoice


def state(folder: Path, steps: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    history = [{"step": step, "loss": 1.0 / step} for step in range(1, steps + 1)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history, "max_steps": 30}))


def test_of_several_checkpoints_the_newest_state_is_the_run(tmp_path: Path) -> None:
    for step in (10, 9, 20):
        state(tmp_path / "output" / f"checkpoint-{step}", step)
    (tmp_path / "output" / "config.json").write_text("{}")
    (tmp_path / "output" / "tokenizer.json").write_text("{}")
    assert list(find_logs(tmp_path)) == [tmp_path / "output" / "checkpoint-20" / "trainer_state.json"]
    (curves,) = open_log(tmp_path / "output")
    assert curves.train_loss is not None and len(curves.train_loss) == 20 and curves.planned_steps == 30
    (curves,) = open_log(tmp_path / "output" / "checkpoint-10")
    assert curves.train_loss is not None and len(curves.train_loss) == 10


def test_the_state_of_the_whole_run_goes_before_those_of_its_checkpoints(tmp_path: Path) -> None:
    state(tmp_path, 25)
    state(tmp_path / "checkpoint-20", 20)
    assert list(find_logs(tmp_path)) == [tmp_path / "trainer_state.json"]


def test_a_half_written_state_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    state(tmp_path, 25)
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2)[:600])
    (curves,) = open_log(path)
    assert curves.train_loss is not None and len(curves.train_loss) > 5


def test_a_whole_state_without_an_end_of_its_last_line_is_whole(tmp_path: Path) -> None:
    state(tmp_path, 25)
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=2))
    (curves,) = open_log(path)
    assert curves.source == "hf" and curves.points == 25


def test_the_outputs_of_a_notebook_are_its_logs(tmp_path: Path) -> None:
    table = "<table><thead><tr><th>Step</th><th>Training Loss</th><th>Validation Loss</th></tr></thead><tbody>"
    table += "".join(f"<tr><td>{n}00</td><td>{1 / n:.4f}</td><td>{2 / n:.4f}</td></tr>" for n in range(1, 6)) + "</tbody></table>"
    cells = [
        {"cell_type": "markdown", "source": ["loss: 0.5"]},
        {"cell_type": "code", "outputs": [{"output_type": "stream", "text": [f"Epoch {n} loss: 0.{n}\n" for n in range(1, 5)]}]},
        {
            "cell_type": "code",
            "outputs": [{"output_type": "display_data", "data": {"text/html": [table], "text/plain": ["<…>"]}}],
        },
    ]
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
    printed, drawn = open_log(path)
    assert printed.train_loss is not None and list(printed.train_loss.values) == [0.1, 0.2, 0.3, 0.4]
    assert drawn.train_loss is not None and drawn.val_loss is not None and list(drawn.val_loss.steps) == [100, 200, 300, 400, 500]
    path.write_text(json.dumps({"cells": cells[:1], "metadata": {}, "nbformat": 4}))
    with pytest.raises(LogUnreadable, match="notebook"):
        open_log(path)


def test_a_series_that_no_name_tells_can_be_chosen(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,alpha,beta,gamma\n" + "".join(f"{n},{1 / (n + 1)},{2 / (n + 1)},{n}\n" for n in range(6)))
    with pytest.raises(LogUnreadable, match="alpha, beta, gamma"):
        open_log(path)
    (curves,) = open_log(path, anything=True)
    chosen = SeriesChoice(train_loss="alpha", val_loss="beta", metric="gamma", better="higher").of(curves)
    assert chosen.train_loss is not None and chosen.val_loss is not None
    assert (chosen.train_loss.name, chosen.val_loss.name, chosen.metrics[0].better) == ("alpha", "beta", "higher")
    with pytest.raises(LogUnreadable, match="no series named alfa") as caught:
        SeriesChoice(train_loss="alfa").of(curves)
    assert "alpha" in caught.value.fix
    with pytest.raises(LogUnreadable, match="higher or lower"):
        SeriesChoice(metric="gamma").of(curves)


def test_a_chosen_loss_speaks_before_the_one_that_names_would_choose(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("step,loss,aux_loss\n" + "".join(f"{n},1.0,{n}\n" for n in range(6)))
    (curves,) = open_log(path)
    assert curves.train_loss is not None and curves.train_loss.name == "loss"
    chosen = SeriesChoice(train_loss="aux_loss").of(curves)
    assert chosen.train_loss is not None and chosen.train_loss.name == "aux_loss" and len(chosen.curves) == 2
