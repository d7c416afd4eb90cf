"""The store at the end of a process, in its children, and through `run.save()`."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from every_case import every_case
from safetensors.torch import load_file
from store_loop import Loop, assert_same
from torch import nn

import holdfast
from holdfast.checkpoints.manifest import read_manifest
from holdfast.state.store import CheckpointStore

SAVES = """
import os, sys, torch, holdfast, multiprocessing
torch.set_num_threads(1)  # a process that forks while torch's own threads are being started is none to judge by
model = torch.nn.Linear(300, 300)
def child(store, saves):
    if saves:
        store.save(2, model=model)
if __name__ == "__main__":
    for name in ("nothing", "saves"):
        store = holdfast.CheckpointStore(os.path.join(sys.argv[1], name))
        store.save(1, model=model)
        process = multiprocessing.get_context("fork").Process(target=child, args=(store, name == "saves"))
        process.start()
        process.join(60)
        assert process.exitcode == 0
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
    holdfast.CheckpointStore(os.path.join(sys.argv[1], "at-the-end")).save(1, model=model)
"""


def run_script(text: str, *words: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text, *words],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a script that forks and then ends right after a save has left."""
    folder = tmp_path_factory.mktemp("saved")
    run_script(SAVES, str(folder))
    return folder


def test_a_save_that_is_under_way_when_the_script_ends_is_finished(saved: Path) -> None:
    assert [path.name for path in (saved / "at-the-end").iterdir()] == ["step-000001"]


def test_a_forked_child_leaves_its_parents_save_alone_and_may_save_itself(saved: Path) -> None:
    assert [path.name for path in (saved / "nothing").iterdir()] == ["step-000001"]
    assert sorted(path.name for path in (saved / "saves").iterdir()) == ["step-000001", "step-000002"]


# In a run


@every_case("policy", ["observe", "guard", "heal"])
def test_run_save_finds_everything_and_tells_the_journal(tmp_path: Path, policy: str) -> None:
    gc.collect()  # scalers of other tests would be found
    loop = Loop()
    with holdfast.watch(loop.model, loop.optimizer, folder=tmp_path, name="run", policy=policy) as run:
        run.settings(batch=16)
        for step in range(3):
            loop.train(1)
            path = run.save(metrics={"val_loss": 1.0 - step / 10})
        elsewhere = run.save(tmp_path / "mine", wait=True)
    assert path == run.folder / "checkpoints" / "step-000003" and elsewhere == tmp_path / "mine" / "step-000003"
    manifest = read_manifest(path)
    assert manifest is not None and manifest["settings"] == {"batch": 16} and manifest["run"] == str(run.folder)
    rows = [json.loads(line) for line in (run.folder / "journal.jsonl").read_text().splitlines()]
    saved = [row for row in rows if row["kind"] == "checkpoint" and row["event"] == "saved" and row.get("by") != "guard"]
    assert {str(path), str(elsewhere)} <= {row["path"] for row in saved if row["step"] == 3}
    training = torch.load(path / "training.pt", weights_only=True)
    assert [len(training[kind]) for kind in ("optimizers", "schedulers", "scalers")] == [1, 1, 1]
    other = Loop(seed=5)
    assert CheckpointStore(path.parent).restore(model=other.model, randomness=False) is not None
    assert_same(other.model.state_dict(), loop.model.state_dict())


def test_run_save_before_the_first_step_and_with_nothing_to_save(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with holdfast.watch(model, optimizer, folder=tmp_path, name="early") as run:
        path = run.save(wait=True)
        assert path is not None and load_file(path / "weights.safetensors").keys() == {"weight", "bias"}
    del model, optimizer
    gc.collect()  # what other tests left would be found
    with holdfast.watch(folder=tmp_path, name="empty") as run, pytest.warns(UserWarning, match="no training"):
        assert run.save() is None


def test_a_store_of_ones_own_tells_the_open_run(loop: Loop, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "mine")
    with holdfast.watch(loop.model, loop.optimizer, folder=tmp_path, name="run") as run:
        store.save(1, **loop.train(1).parts, wait=True)
        loop.model.last.weight.data[0, 0] = torch.nan
        with pytest.warns(UserWarning):
            store.save(2, **loop.parts, wait=True)
        store.restore(**loop.parts)
    rows = [json.loads(line) for line in (run.folder / "journal.jsonl").read_text().splitlines()]
    told = [
        (row["kind"], row.get("event", row.get("code")), row["step"]) for row in rows if row["kind"] in ("checkpoint", "finding")
    ]
    assert [row for row in told if row[1] != "non-finite-weights"] == [
        ("checkpoint", "saved", 1),
        ("finding", "checkpoint-non-finite", 2),
        ("checkpoint", "loaded", 1),
    ]
