"""`holdfast checkpoints list`: a table that says which checkpoint is worth going on from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import one_of_each, save, training

from holdfast.cli.checkpoints import list as list_verb

Holdfast = Callable[..., Any]


def columns(out: str) -> dict[str, list[str]]:
    """The rows of the table by name."""
    return {line.split()[0]: line.split() for line in out.split("\n\n")[0].splitlines()}


def test_the_table_has_step_epoch_metric_state_and_what_each_holds(holdfast: Holdfast, here: Path) -> None:
    one_of_each(here / "kept")
    done = holdfast("checkpoints", "list", "kept")
    assert done.code == 1
    rows = columns(done.out)
    assert rows["in"] == ["in", "kept/", "size", "step", "epoch", "val_acc", "saved", "state", "holds"]
    assert rows["ckpt_100.pt"][3:6] == ["100", "1", "0.6"] and rows["ckpt_100.pt"][-3:] == ["clean", "weights", "optim"]
    assert rows["ckpt_200.pt"][-3] == "non-finite" and rows["last.pt"][-3] == "torn" and rows["evil.pt"][-3] == "unsafe"
    assert rows["page.pt"][-2:] == ["unreadable", "–"]
    assert "kept/ckpt_200.pt is non-finite" in done.out and "fix: " in done.out


def test_steps_go_from_the_oldest_to_the_newest(holdfast: Holdfast, here: Path) -> None:
    for step in (300, 1000, 20):
        save(here / "kept" / f"ckpt_{step}.pt", training(step))
    names = list(columns(holdfast("checkpoints", "list", "kept").out))
    assert names == ["in", "ckpt_20.pt", "ckpt_300.pt", "ckpt_1000.pt"]


def test_nothing_is_wider_than_100_columns_and_a_long_name_keeps_both_ends(holdfast: Holdfast, here: Path) -> None:
    long = "a_very_long_name_of_an_experiment_with_all_its_settings_lr_0.001_batch_64_and_more.pt"
    everything = {
        **training(123_456), "scheduler": {"last_epoch": 1}, "scaler": {"scale": 2.0}, "rng_state": torch.get_rng_state(),
        "loader": {"position": 3}, "ema": training()["model"], "val_acc": 0.912345678,
    }  # fmt: skip
    save(here / "first_folder" / long, everything)
    save(here / "second_folder" / "x.pt", training())
    out = holdfast("checkpoints", "list", ".").out
    assert max(map(len, out.splitlines())) <= 100
    assert "first_" in out and "more.pt" in out and "…" in out
    for word in ("weights", "optim", "sched", "scaler", "rng", "loader", "ema", "clean"):
        assert word in out


def test_quick_reads_indexes_only_and_says_so(holdfast: Holdfast, here: Path) -> None:
    one_of_each(here / "kept")
    done = holdfast("checkpoints", "list", "--quick", "kept")
    rows = columns(done.out)
    assert rows["ckpt_200.pt"][-4:-2] == ["not", "read"] and rows["last.pt"][-3] == "torn"
    assert "NaN and Inf were not checked" in done.err


def test_more_than_twenty_gigabytes_are_not_read_unasked(holdfast: Holdfast, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        path = save(here / "kept" / f"ckpt_{number}.pt", training(number))
        os.utime(path, (1e9 + number, 1e9 + number))
    monkeypatch.setattr(list_verb, "_READ", int(2.5 * path.stat().st_size))
    done = holdfast("checkpoints", "list", "kept")
    rows = columns(done.out)
    assert [rows[f"ckpt_{number}.pt"][-3] for number in range(4)] == ["read", "read", "clean", "clean"]  # the newest are read
    assert "2 of 4 were not read" in done.err and "verify reads everything" in done.err and done.code == 0


def test_json_is_one_list_with_stable_keys_and_numbers_as_numbers(holdfast: Holdfast, here: Path) -> None:
    one_of_each(here / "kept")
    save(here / "kept" / "nan_metric.pt", {**training(900), "val_acc": float("nan")})
    rows = json.loads(holdfast("checkpoints", "list", "--json", "kept").out)
    assert list(rows[0]) == [
        "path", "format", "producer", "size", "files", "modified", "step", "epoch", "metric", "metrics", "saved_at", "holds",
        "weights_only", "parameters", "versions", "state", "verified", "non_finite", "troubles",
    ]  # fmt: skip
    by_name = {Path(row["path"]).name: row for row in rows}
    assert by_name["ckpt_100.pt"]["metric"] == {"name": "val_acc", "value": 0.6} and by_name["ckpt_100.pt"]["step"] == 100
    assert by_name["ckpt_200.pt"]["non_finite"] == {"model.blocks.3.up.weight": 5, "model.head.bias": 1}
    assert by_name["nan_metric.pt"]["metric"]["value"] == "nan"


def test_another_metric_is_told_with_its_name(holdfast: Holdfast, here: Path) -> None:
    save(here / "kept" / "a_1.pt", {"model": training()["model"], "val_acc": 0.75})
    save(here / "kept" / "b_2.pt", {"model": training()["model"], "val_acc": 0.80})
    save(here / "kept" / "c_3.pt", {"model": training()["model"], "bleu": 31.5})
    rows = columns(holdfast("checkpoints", "list", "kept").out)
    assert "val_acc" in rows["in"] and "0.75" in rows["a_1.pt"]
    assert rows["c_3.pt"][3:5] == ["bleu", "31.5"]


def test_weights_alone_are_called_weights_only(holdfast: Holdfast, here: Path) -> None:
    save(here / "w.pt", training()["model"])
    assert holdfast("checkpoints", "list", "w.pt").out.rstrip().endswith("weights only")


def test_in_a_terminal_states_have_colours(in_terminal: Callable[..., str], here: Path) -> None:
    save(here / "w.pt", training())
    assert "\x1b[32mclean" in in_terminal("checkpoints", "list", "w.pt")


def test_a_folder_without_a_checkpoint_exits_2(holdfast: Holdfast, here: Path) -> None:
    (here / "empty").mkdir()
    (here / "empty" / "notes.txt").write_text("hello", encoding="utf-8")
    done = holdfast("checkpoints", "list", "empty")
    assert done.code == 2 and "folder without a checkpoint" in done.err
