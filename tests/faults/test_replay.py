"""`holdfast replay` on real small trainings with one fault each: it names the operation and the user's line."""

from __future__ import annotations

import json
import runpy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from holdfast_run import PYTHON, Done, typed
from torch.optim.optimizer import register_optimizer_step_pre_hook
from warm_command import WarmCommand

from holdfast.inside.discovery import find_live_objects, find_roots
from holdfast.inside.observers.batches import Batches, save_batches
from holdfast.inside.taps.registry import Taps
from holdfast.signals.run_folder import RunFolder

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset


class Head(nn.Module):
    def forward(self, features):
        return {head}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 1, bias=False)
        self.drop = nn.Dropout(0.1)
        self.head = Head()

    def forward(self, inputs):
        return self.head(self.drop(self.body(inputs)))


def loss_of(outputs, targets):
    return ({loss}).mean()


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs, targets = torch.randn(64, 8), torch.rand(64, 1)
    {spoil}
    data = Subset(TensorDataset(inputs, targets), range(32, 64))
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers={workers})
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    {loop}


if __name__ == "__main__":
    main()
"""
LOOP = """for inputs, targets in loader:
        loss_of(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.save(model.state_dict(), "weights.pt")"""
ACCUMULATING = """for number, (inputs, targets) in enumerate(loader, 1):
        loss_of(model(inputs), targets).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()"""
WATCHED = """import holdfast
    with holdfast.watch(model, optimizer, name="watched") as run:
        for inputs, targets in run.batches([next(iter(loader)) for _ in range(20)]):
            loss_of(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()"""
BAD = 37  # the sample that brings the step down


class Kept(Exception):
    """The step is saved; the training need not go on."""


@contextmanager
def keeping(folder: Path, *, at: int | None = None) -> Iterator[Batches]:
    """Save the first step whose gradients are not finite, or step `at`, as the guard does."""
    batches, taps, steps = Batches(), Taps(), 0

    def next_batch(original: Any) -> Any:
        def __next__(iterator: Any) -> Any:
            drawn = original(iterator)
            batches.note(iterator, drawn)
            return drawn

        return __next__

    def before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        nonlocal steps
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if steps == at or any(not torch.isfinite(p.grad).all() for p in parameters):
            (model,) = find_roots(find_live_objects().modules, parameters)
            save_batches(folder, steps, batches.current(), state={"0": model.state_dict()}, run_later=lambda job: job())
            raise Kept
        batches.end_step()
        steps += 1

    batches.install(taps)
    taps.wrap("torch.utils.data.dataloader._BaseDataLoaderIter.__next__", next_batch)
    handle = register_optimizer_step_pre_hook(before_step)
    try:
        yield batches
    finally:
        handle.remove()
        taps.restore()


def written(folder: Path, *, spoil: str = "pass", loss: str = "outputs", **parts: Any) -> Path:
    """A script with its fault; the line to be named ends in `# here`."""
    filled = {"head": "features", "workers": 0, "loop": LOOP, **parts}
    script = folder / "train.py"
    script.write_text(SCRIPT.format(spoil=spoil, loss=loss, **filled))
    return script


class Folder:
    """Where a script lies and its run; the step is replayed in the warm Python, or in a process of its own."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch, command: WarmCommand) -> None:
        self.path, self._monkeypatch, self._command = path, monkeypatch, command

    def run(self, *, cold: bool = False) -> RunFolder:
        self._monkeypatch.chdir(self.path)
        words = [PYTHON, "train.py"] if cold else [*self._command.words, "train.py"]
        return RunFolder.create(self.path / "runs", "bad", command=words, cwd=str(self.path))

    def keep(self, *, at: int | None = None, cold: bool = False, **parts: Any) -> RunFolder:
        """Train until the step that is saved, and give the run."""
        script = written(self.path, **parts)
        run = self.run(cold=cold)
        with pytest.raises(Kept), keeping(run.claim(0).path / "batches", at=at):
            runpy.run_path(str(script), run_name="__main__")
        return run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_command: WarmCommand) -> Folder:
    return Folder(tmp_path, monkeypatch, warm_command)


def replay(folder: Path, *words: str) -> Done:
    return typed("replay", *words, folder=folder, HOLDFAST_DEBUG="raise")


def answer_of(folder: Path, *words: str) -> dict[str, Any]:
    done = replay(folder, "bad", "--json", *words)
    assert done.returncode == 1, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_the_operation_is_named_with_its_module_line_operands_and_sample(folder: Folder) -> None:
    folder.keep(spoil="inputs[37] = 0", head="torch.log(features ** 2)", workers=2, cold=True)
    answer = answer_of(folder.path)
    assert (answer["operation"], answer["cause"], answer["stage"]) == ("aten::log", "log-of-zero", "forward")
    assert answer["reached"] == "the loss" and answer["weights_loaded"] and answer["input"] == "finite"
    assert (answer["line"]["function"], Path(answer["line"]["file"]).name) == ("forward", "train.py")
    assert answer["line"]["code"] == "return torch.log(features ** 2)" and answer["module"] == "head"
    assert answer["samples"] == [BAD] and BAD in answer["batch"]["dataset_indices"][0]
    assert answer["operands"][0]["zeros"] == 1 and answer["at"]["output"] == "-inf" and answer["fixes"]


def test_a_root_at_zero_whose_backward_is_infinite_is_named_by_the_line_of_the_root(folder: Folder) -> None:
    folder.keep(spoil="inputs[37] = 0; targets[37] = 0", loss="torch.sqrt((outputs - targets) ** 2)")
    answer = answer_of(folder.path)
    assert (answer["stage"], answer["node"], answer["cause"]) == ("backward", "SqrtBackward0", "division-by-zero")
    assert "torch.sqrt" in answer["line"]["code"] and answer["line"]["function"] == "loss_of"
    assert answer["reached"] == "the gradient of body.weight"


def test_an_infinite_pixel_is_blamed_on_the_batch_and_its_sample(folder: Folder) -> None:
    folder.keep(spoil="inputs[37, 3] = float('inf')")
    done = replay(folder.path, "bad")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[1].startswith("the batch itself is not finite: field 0: 1 of 32 values is Inf, in sample ")
    assert lines[2] == f"samples of the data set: {BAD}"


def test_of_several_accumulated_batches_the_bad_one_is_found(folder: Folder) -> None:
    folder.keep(spoil="inputs[37] = 0", loss="-torch.log(outputs ** 2)", loop=ACCUMULATING)
    answer = answer_of(folder.path)
    assert len(answer["batch"]["indices"]) == 4
    assert answer["operation"] == "aten::log"


def test_a_loop_over_run_batches_is_replayed_and_makes_no_run_of_its_own(folder: Folder) -> None:
    written(folder.path, loss="-torch.log(outputs ** 2)", loop=WATCHED)
    run = folder.run()
    batches, inputs = Batches(), torch.randn(4, 8)
    inputs[2] = 0
    batches.note(None, [inputs, torch.rand(4, 1)])
    save_batches(
        run.path / "batches", 3, batches.current(), state={"0": {"body.weight": torch.randn(1, 8)}}, run_later=lambda job: job()
    )
    answer = answer_of(folder.path)
    assert answer["operation"] == "aten::log" and answer["weights_loaded"] and 2 in answer["output"]["bad_rows"]
    assert sorted(path.name for path in (folder.path / "runs").iterdir()) == ["bad", "latest"]


def test_a_step_that_comes_out_finite_says_so_and_nothing_of_the_scripts_is_written(folder: Folder) -> None:
    folder.keep(at=3)
    (folder.path / "weights.pt").write_bytes(b"the real run's")
    done = replay(folder.path, "-t", "bad", "--step", "3")
    assert done.returncode == 0, done.stderr
    assert "not reproduced" in done.stdout
    assert (folder.path / "weights.pt").read_bytes() == b"the real run's"


def test_what_cannot_be_replayed_is_told_in_words(folder: Folder) -> None:
    run = folder.keep(at=3)
    done = replay(folder.path, "bad", "--step", "99")
    assert done.returncode == 2 and "step 99 of bad is not saved; there are: 3." in done.stderr
    (folder.path / "train.py").write_text("import torch\nraise FileNotFoundError('data.csv')\n")
    done = replay(folder.path, "bad")
    assert done.returncode == 2
    assert "could not be replayed" in done.stderr and "FileNotFoundError: data.csv" in done.stderr
    (run.path / "rank-0" / "batches" / "step-000003.pt").unlink()
    done = replay(folder.path, "bad")
    assert done.returncode == 2 and "--policy guard" in done.stderr
