"""`holdfast checkpoints inspect`: what is inside, as a tree, with nothing of it run."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from checkpoint_files import Payload, save, training
from torch import nn

Holdfast = Callable[..., Any]


def test_keys_shapes_kinds_and_sizes_are_shown_with_layers_that_are_alike_told_once(holdfast: Holdfast, here: Path) -> None:
    save(here / "a.pt", training())
    done = holdfast("checkpoints", "inspect", "a.pt")
    assert done.code == 0
    assert "0 … 5 (6 alike)" in done.out and "weight  float32 [16, 8] 512 bytes" in done.out
    assert done.out.split("saved at")[0].count("[16, 8]") == 1
    assert "parameters    1,707" in done.out
    assert "settings      lr=0.001, layers=6, data='digits'" in done.out
    assert "saved at      step 100, epoch 1, val_acc 0.6" in done.out
    assert "numbers       float32" in done.out and "biggest" in done.out
    assert max(map(len, done.out.splitlines())) <= 100


def test_an_optimizers_state_of_many_shapes_is_one_line(holdfast: Holdfast, here: Path) -> None:
    save(here / "a.pt", training())
    assert (
        "0 … 25 (26 alike but for their shapes)  each step, exp_avg, exp_avg_sq" in holdfast("checkpoints", "inspect", "a.pt").out
    )


def test_depth_and_all_show_less_and_everything(holdfast: Holdfast, here: Path) -> None:
    save(here / "a.pt", training())
    flat = holdfast("checkpoints", "inspect", "--depth", "1", "a.pt").out
    assert "model  26 tensors" in flat and "blocks" not in flat.split("saved at")[0]
    full = holdfast("checkpoints", "inspect", "--all", "a.pt").out
    assert "alike" not in full and full.count("exp_avg_sq  float32") >= 26


def test_a_module_that_was_pickled_whole_shows_its_classes_and_needs_code(holdfast: Holdfast, here: Path) -> None:
    save(here / "whole.pt", nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    out = holdfast("checkpoints", "inspect", "whole.pt").out
    assert "0  Linear" in out and "1  ReLU" in out and "weight  float32 [3, 2] 24 bytes" in out
    assert "needs code    torch.nn.modules.container.Sequential" in out and "nothing was run" in " ".join(out.split())


def test_what_was_refused_is_named_and_nothing_runs(holdfast: Holdfast, here: Path) -> None:
    save(here / "evil.pt", {"config": {"x": Payload(here / "ran")}, "model": training()["model"]})
    done = holdfast("checkpoints", "inspect", "evil.pt")
    assert done.code == 1 and "unsafe" in done.out and "refused       posix.system" in done.out
    assert not (here / "ran").exists()


def test_json_has_the_tree_the_tensors_and_the_settings(holdfast: Holdfast, here: Path) -> None:
    content = {**training(), "args": argparse.Namespace(lr=0.1, name="x"), "nan": float("nan"), "blob": b"12345"}
    save(here / "a.pt", content)
    (row,) = json.loads(holdfast("checkpoints", "inspect", "--json", "a.pt").out)
    assert list(row) == [
        "path", "format", "producer", "size", "files", "modified", "state", "step", "epoch", "metric", "metrics", "saved_at",
        "holds", "weights_only", "parameters", "versions", "bytes_by_dtype", "biggest", "settings", "needs_code", "refused",
        "notes", "troubles", "tensors", "tree",
    ]  # fmt: skip
    assert row["tree"]["model"]["head.weight"] == {"tensor": "float32", "shape": [3, 8]}
    assert row["tree"]["nan"] == "nan" and row["tree"]["config"]["layers"] == 6
    assert row["settings"]["name"] == "x" and row["parameters"] == 1707
    assert {"name": "model.head.bias", "dtype": "float32", "shape": [3], "bytes": 12, "shared": False} in row["tensors"]


def test_a_torn_file_shows_what_is_still_known_of_it(holdfast: Holdfast, here: Path) -> None:
    path = save(here / "a.pt", training())
    path.write_bytes(path.read_bytes()[:-500])
    done = holdfast("checkpoints", "inspect", "a.pt")
    assert done.code == 1 and "torn" in done.out and "float32 [16, 8]" in done.out and "step 100" in done.out


def test_shared_numbers_count_once(holdfast: Holdfast, here: Path) -> None:
    weight = torch.ones(100)
    save(here / "a.pt", {"model": {"a.weight": weight, "b.weight": weight}})
    assert "numbers       float32 400 bytes" in holdfast("checkpoints", "inspect", "a.pt").out


def test_entries_that_are_numbered_stand_in_their_order(holdfast: Holdfast, here: Path) -> None:
    save(here / "a.pt", {f"layers.{number}.weight": torch.ones(number + 1) for number in (10, 0, 2, 1)})
    out = holdfast("checkpoints", "inspect", "a.pt").out
    assert [out.index(f"[{length}]") for length in (1, 2, 3, 11)] == sorted(out.index(f"[{length}]") for length in (1, 2, 3, 11))


def test_several_are_shown_one_after_the_other(holdfast: Holdfast, here: Path) -> None:
    save(here / "a.pt", training())
    save(here / "b.pt", training()["model"])
    out = holdfast("checkpoints", "inspect", "a.pt", "b.pt").out
    assert out.index("a.pt") < out.index("b.pt") and "weights only" in out


def test_a_name_as_long_as_a_page_is_cut(holdfast: Holdfast, here: Path) -> None:
    save(
        here / "a.pt",
        {
            "x" * 5000: 3,
            "9" * 5000: {"9" * 5000: 1},
            "y": "z" * 5000,
            "numbers": list(range(10_000)),
            "model": training()["model"],
        },
    )
    out = holdfast("checkpoints", "inspect", "a.pt").out
    assert max(map(len, out.splitlines())) <= 100 and "10,000 in all" in out
