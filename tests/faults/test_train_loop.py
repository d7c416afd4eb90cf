"""The trainer's loop keeps what it has done: killed in the middle of an epoch, on other ranks, with batches in parts."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from holdfast_run import run

sys.path.insert(0, str(Path(__file__).parents[1] / "trainings"))
from loop_digits import DigitsTask

from holdfast.errors import UsageError
from holdfast.train.devices import Place
from holdfast.train.loop import Training
from holdfast.train.settings import TrainSettings

LOOP = Path(__file__).parents[1] / "trainings" / "loop_digits.py"
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
OFTEN = "save_minutes=0.0001"  # after every update


class PlainDigits(DigitsTask):
    """Without dropout, batch norm and noise: the same gradient however a batch is divided."""

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(64, 10)

    def train_data(self) -> Any:
        data = super().train_data()
        data.noise = 0.0
        return data


def training(folder: Path, task: DigitsTask | None = None, **settings: Any) -> Training:
    chosen = {"epochs": 2, "batch_size": 50, "workers": 0, "project": str(folder), "name": "run", "policy": "observe"}
    return Training(task or PlainDigits(), TrainSettings(**{**chosen, **settings}), Place(torch.device("cpu")))


@pytest.mark.slow
def test_killed_in_the_middle_of_an_epoch_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    common = (sys.executable, str(LOOP), "epochs=3", OFTEN)
    whole = run(tmp_path, "--name", "whole", "--policy", "heal", "--", *common, "final=whole.pt")
    killed = run(tmp_path, "--name", "killed", "--policy", "heal", "--", *common, "final=killed.pt", "die=33")
    assert (whole.returncode, killed.returncode) == (0, 0), whole.stderr + killed.stderr
    assert "resumed from step 3" in killed.stdout
    one, other = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.pt", "killed.pt"))
    assert one["step"] == other["step"] == 60
    assert all(torch.equal(one["model"][name], other["model"][name]) for name in one["model"])
    rows = [list(csv.DictReader((tmp_path / f"runs/{name}/metrics.csv").open())) for name in ("whole", "killed")]
    assert [row["accuracy"] for row in rows[0]] == [row["accuracy"] for row in rows[1]]


KILLED_TWICE = """
import os, pathlib, signal, sys, time
import torch
import holdfast

attempt = int(os.environ.get("HOLDFAST_ATTEMPT", "1")) if sys.argv[1] == "killed.pt" else 0
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
loader = torch.utils.data.DataLoader(torch.randn(2000, 8), batch_size=4, shuffle=True)
with holdfast.watch(model, optimizer) as run:
    run.restore()
    for done, batch in enumerate(run.batches(loader), 1):
        optimizer.zero_grad()
        (model(batch) - batch[:, :1]).square().mean().backward()
        optimizer.step()
        if attempt == 2:
            run.save(wait=True)
        time.sleep(0.01 if attempt == 1 else 0)  # a snapshot is written in the background
        is_kept = list(pathlib.Path(run.folder, "checkpoints").glob("step-*/manifest.json"))
        if (attempt == 1 and is_kept) or (attempt, done) == (2, 1):
            os.kill(os.getpid(), signal.SIGKILL)
torch.save(model.state_dict(), sys.argv[1])
"""


@pytest.mark.slow
def test_killed_again_while_it_is_fast_forwarded_it_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it saved meanwhile had the weights of a later step than its position in the data."""
    monkeypatch.setenv("HOLDFAST_SAVE_EVERY", "0.01")
    (tmp_path / "loop.py").write_text(KILLED_TWICE)
    whole, killed = (
        run(tmp_path, "--policy", "heal", "--", sys.executable, "loop.py", name) for name in ("whole.pt", "killed.pt")
    )
    assert (whole.returncode, killed.returncode) == (0, 0), whole.stderr + killed.stderr
    assert killed.stderr.count("fast-forwarding") == 2, killed.stderr
    one, other = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.pt", "killed.pt"))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_resumed_run_that_is_killed_continues_from_its_own_checkpoints_and_keeps_the_best(tmp_path: Path) -> None:
    common = (sys.executable, str(LOOP), OFTEN)
    first = run(tmp_path, "--name", "first", "--", *common, "epochs=2", "lr0=0.05")
    assert first.returncode == 0, first.stderr
    more = ("epochs=4", "lr0=0.05", "lrf=1", "resume=runs/first", "die=30")
    second = run(tmp_path, "--name", "second", "--policy", "heal", "--", *common, *more)
    assert second.returncode == 0, second.stderr
    steps = [int(words.partition(" ")[0]) for words in second.stdout.split("resumed from step ")[1:]]
    assert steps[0] == 40 and 40 < steps[1] <= 70  # killed at its 30th batch
    rows = list(csv.DictReader((tmp_path / "runs/second/metrics.csv").open()))
    best = json.loads((tmp_path / "runs/second/checkpoints/best.json").read_text())
    assert best["value"] == pytest.approx(max(float(row["accuracy"]) for row in rows))
    earlier = json.loads((tmp_path / "runs/first/checkpoints/best.json").read_text())
    assert best["value"] >= earlier["value"]


@pytest.mark.slow
def test_resumed_on_another_number_of_ranks_every_sample_is_seen_once(tmp_path: Path) -> None:
    first = run(tmp_path, "--name", "one", "--", sys.executable, str(LOOP), "epochs=1", OFTEN, "seen=one", "die=8")
    assert first.returncode == 137
    words = ("epochs=1", "device=cpu,cpu", "seen=two", "resume=runs/one")
    second = run(tmp_path, "--name", "two", "--", sys.executable, *RANKS, str(LOOP), *words)
    assert second.returncode == 0, second.stderr
    step = int(second.stdout.partition("resumed from step ")[2].partition(" ")[0])
    assert step > 3
    before = [int(word) for line in (tmp_path / "one-0").read_text().splitlines()[:step] for word in line.split()]
    after = [int(word) for rank in "01" for word in (tmp_path / f"two-{rank}").read_text().split()]
    assert sorted(before + after) == list(range(1000))


def test_accumulated_batches_give_the_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    whole, parts = (
        training(tmp_path, name=name, optimizer="sgd", seed=3, **sizes)
        for name, sizes in (("whole", {"batch_size": 100}), ("parts", {"batch_size": 25, "accumulate": 4}))
    )
    whole.fit()
    parts.fit()
    assert whole.schedule.last_epoch == parts.schedule.last_epoch == 20
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_training_stops_early_and_reports_the_best_weights(tmp_path: Path) -> None:
    stopped = training(tmp_path, epochs=40, patience=2, lr0=0.1, ema=0)
    metrics = stopped.fit()
    rows = list(csv.DictReader((tmp_path / "run" / "metrics.csv").open()))
    best = max(float(row["accuracy"]) for row in rows)
    assert len(rows) < 40
    assert int(rows[-1]["epoch"]) - next(int(row["epoch"]) for row in rows if float(row["accuracy"]) == best) == 2
    assert metrics["accuracy"] == pytest.approx(best)


def test_a_batch_larger_than_the_data_is_an_error_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        training(tmp_path, batch_size=2000)
    assert caught.value.fix == "--batch-size 1000"
