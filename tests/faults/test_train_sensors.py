"""Training on a sensor array keeps what it has done when it is killed, and pre-training hands its encoder on."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from holdfast_run import run

sys.path.insert(0, str(Path(__file__).parents[1] / "trainings"))
from loop_sensors import events

ROOT = Path(__file__).parents[2]
LOOP = ROOT / "tests" / "trainings" / "loop_sensors.py"
OFTEN = "save_minutes=0.0001"  # after every update
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def trained(folder: Path, name: str, *words: str, before: tuple[str, ...] = ()) -> Any:
    """Train under a supervisor that restarts it; what it printed."""
    if not (folder / "events.npz").exists():
        np.savez(folder / "events.npz", **events(400))
    command = (sys.executable, *before, str(LOOP), "data=events.npz", OFTEN, f"final={name}.pt", *words)
    ended = run(folder, "--name", name, "--policy", "heal", "--", *command)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended


def weights(folder: Path, name: str) -> dict[str, torch.Tensor]:
    kept: dict[str, torch.Tensor] = torch.load(folder / f"{name}.pt", weights_only=True)["model"]
    return kept


def rows(run: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((run / "metrics.csv").open()))


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["mae", "regress"])
def test_killed_in_the_middle_of_an_epoch_it_ends_with_the_same_weights(objective: str, tmp_path: Path) -> None:
    words = (f"objective={objective}", "workers=2")
    trained(tmp_path, "whole", *words)
    killed = trained(tmp_path, "killed", *words, "die=31")
    step = int(killed.stdout.partition("resumed from step ")[2].partition(" ")[0])
    assert 23 < step < 31, "an epoch has 23 updates"
    one, other = weights(tmp_path, "whole"), weights(tmp_path, "killed")
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
    both = [[(row["val_loss"], row["lr"]) for row in rows(tmp_path / "runs" / name)] for name in ("whole", "killed")]
    assert both[0] == both[1]


@pytest.mark.slow
def test_two_ranks_end_where_one_does(tmp_path: Path) -> None:
    trained(tmp_path, "one")
    trained(tmp_path, "two", "device=cpu,cpu", "save_predictions=parquet", before=RANKS)
    one, other = weights(tmp_path, "one"), weights(tmp_path, "two")
    assert all(torch.allclose(one[name], other[name], atol=2e-3) for name in one)
    assert len(list((tmp_path / "runs/two/predictions/best").glob("rank-*.parquet"))) == 2


@pytest.mark.slow
def test_a_regression_on_simulated_events_starts_from_the_encoder_of_the_pretraining(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "examples/simulate_sensors.py", "box", "600"], cwd=tmp_path, check=True)
    small = "--config box/sensors.yaml --width 16 --depth 1 --batch-size 32 --workers 1 --epochs 5 --lr0 0.003 --warmup-epochs 1"
    printed = []
    for words in ("--task mae --name mae", "--task regress --name tuned --resume-from runs/mae"):
        command = [sys.executable, "-m", "holdfast", "train", "sensors", *small.split(), *words.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        printed.append(done.stdout)
    assert "loaded encoder (" in printed[1] and "not loaded heads.filled (" in printed[1]
    mae, tuned = (rows(tmp_path / "runs" / name) for name in ("mae", "tuned"))
    assert float(mae[-1]["val_loss"]) < 0.8 * float(mae[0]["val_loss"])
    assert float(tuned[-1]["energy_mae"]) < 0.5 * 0.375, "0.375 is the error of the mean"


@pytest.mark.slow
def test_under_holdfast_run_it_trains_in_that_run(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "examples/simulate_sensors.py", "box", "200"], cwd=tmp_path, check=True)
    holdfast = [sys.executable, "-m", "holdfast"]
    small = "--config box/sensors.yaml --task mae --width 16 --depth 1 --batch-size 32 --workers 1 --epochs 1 --project other"
    command = [*holdfast, "run", "--name", "outer", "--", *holdfast, "train", "sensors", *small.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(rows(tmp_path / "runs/outer")) == 1 and not (tmp_path / "other").exists()


DATA = ROOT.parent / "shared" / "data"
MUONS = """
data: {data}/hep_root/uproot-Zmumu.root
array:
  channels:
    momentum: {{branch: [px1, py1, pz1, E1, px2, py2, pz2, E2], transform: asinh}}
  faces:
    pair: {{kind: set, start: 0, count: 8}}
targets:
  M: {{loss_fn: smooth_l1, loss_beta: 5}}
"""
MOTIONS = """
data: train.npz
val: test.npz
array:
  channels: {channels}
  faces:
    time: {{kind: grid, shape: [10, 10], start: 0}}
"""


def motions(split: str) -> dict[str, Any]:
    """Recordings of a wearable: six values at each of 100 moments, from the archive's text format."""
    lines = (DATA / "basicmotions_sensor" / f"BasicMotions_{split}.ts").read_text().splitlines()
    series = [line.split(":")[:-1] for line in lines if line and line[0] not in "@#"]
    values = np.array([[[float(word) for word in one.split(",")] for one in each] for each in series], np.float32)
    return {f"value{number}": values[:, number] for number in range(values.shape[1])}


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "hep_root").exists(), reason="the public data lies beside the repository")
@pytest.mark.parametrize("task", ["regress", "mae"])
def test_public_events_and_recordings_are_learned(task: str, tmp_path: Path) -> None:
    channels = motions("TRAIN")
    np.savez(tmp_path / "train.npz", **channels)
    np.savez(tmp_path / "test.npz", **motions("TEST"))
    text = (
        MUONS.format(data=DATA)
        if task == "regress"
        else MOTIONS.format(channels="{" + ", ".join(f"{name}: {{}}" for name in channels) + "}")
    )
    (tmp_path / "array.yaml").write_text(text)
    words = ("--epochs", "8", "--batch-size", "16", "--width", "16", "--depth", "1", "--device", "cpu", "--name", "real")
    command = [sys.executable, "-m", "holdfast", "train", "sensors", "--task", task, "--config", "array.yaml", *words]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    losses = [float(row["val_loss"]) for row in rows(tmp_path / "runs/real")]
    assert min(losses[4:]) < 0.9 * losses[0]
    assert (tmp_path / "runs/real/report.html").exists()
