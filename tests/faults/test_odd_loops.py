"""Scripts with more than one optimizer, or with none: threads beside each other, inner loops, updates by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from holdfast_run import PYTHON, findings_of, run, typed
from watched_training import WarmPython

from holdfast.signals.run_folder import RunFolder

THREADS = """
import threading, torch
from torch.nn.functional import mse_loss

def train(number, bad):
    numbers = torch.Generator().manual_seed(number)
    x = torch.randn(512, 16, generator=numbers)
    y = x @ torch.randn(16, 1, generator=numbers)
    with making:
        torch.manual_seed(number)
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(120):
        begin = step * 32 % 512
        inputs = x[begin : begin + 32] * (float("nan") if step in bad else 1.0)
        loss = mse_loss(model(inputs), y[begin : begin + 32])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses[number].append(float(loss.detach()))
        together.wait()
    with torch.no_grad():
        ends[number] = float(mse_loss(model(x), y))

torch.set_num_threads(1)
making, together, losses, ends = threading.Lock(), threading.Barrier(3), {0: [], 1: [], 2: []}, {}
threads = [threading.Thread(target=train, args=(n, range(40, 120, 9) if n == 0 and WITH_NAN else ())) for n in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
import json, pathlib
pathlib.Path("losses.json").write_text(json.dumps(losses))
print(*(ends[number] for number in range(3)))
"""

MAML = """
import copy, torch
from torch.nn.functional import mse_loss
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(1, 20), torch.nn.Tanh(), torch.nn.Linear(20, 1))
meta = torch.optim.Adam(model.parameters(), lr=1e-3)
for iteration in range(40):
    meta.zero_grad()
    for task in range(3):
        learner = copy.deepcopy(model)
        inner = torch.optim.SGD(learner.parameters(), lr=0.01)
        x = torch.rand(10, 1)
        y = torch.sin(x) * (float("nan") if iteration == 20 else 1.0)
        for _ in range(5):
            inner.zero_grad()
            mse_loss(learner(x), y).backward()
            inner.step()
        learner.zero_grad()
        mse_loss(learner(x), torch.sin(x)).backward()
        for ours, theirs in zip(model.parameters(), learner.parameters()):
            ours.grad = theirs.grad.clone() if ours.grad is None else ours.grad + theirs.grad
    meta.step()
"""

PGD = """
import torch
from torch.nn.functional import cross_entropy
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for iteration in range(40):
    x, y = torch.randn(32, 64), torch.randint(0, 10, (32,))
    delta = torch.zeros_like(x, requires_grad=True)
    attack = torch.optim.SGD([delta], lr=0.1)
    for _ in range(10):
        attack.zero_grad()
        (-cross_entropy(model(x + delta), y)).backward()
        attack.step()
    optimizer.zero_grad()
    cross_entropy(model(x + delta.detach()), y).backward()
    optimizer.step()
"""

LATENTS = """
import torch
torch.manual_seed(0)
net = torch.nn.Linear(8, 32).requires_grad_(False)
for number in range(40):
    latent, target = torch.zeros(8, requires_grad=True), torch.randn(32)
    optimizer = torch.optim.Adam([latent], lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        (net(latent) - target).square().mean().backward()
        optimizer.step()
"""

BY_HAND = """
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)

class Descent:
    def step(self):
        with torch.no_grad():
            for parameter in model.parameters():
                UPDATE
                parameter.grad = None

descent = Descent()
for step in range(100):
    inputs = x * float("nan") if step == 60 else x
    loss = torch.nn.functional.mse_loss(model(inputs), y)
    loss.backward()
    descent.step()
print(float(loss.detach()))
"""
UPDATES = {"in place": "parameter -= 0.05 * parameter.grad", "behind autograd": "parameter.data -= 0.05 * parameter.grad.data"}

ONLY_GRADIENTS = """
import torch
model, x = torch.nn.Linear(8, 1), torch.randn(16, 8)
for _ in range(100):
    model(x).sum().backward()
    model.zero_grad()
"""

ENDS_AT_ONCE = """
import os, torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
os._exit(0)
"""

TWO_STAGES = """
import torch
def train(optimizer, model, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).square().mean().backward()
        optimizer.step()
first, second, third = (torch.nn.Linear(8, 1) for _ in range(3))
one = torch.optim.SGD(first.parameters(), lr=0.01)
train(one, first, 30)
two = torch.optim.SGD(second.parameters(), lr=0.02)
train(two, second, 30)
three = torch.optim.SGD(third.parameters(), lr=0.03)
train(three, third, 5)
"""


def run_of(warm: WarmPython, folder: Path, script: str, policy: str = "guard") -> tuple[RunFolder, str]:
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(script)
    run = RunFolder.create(folder / "runs", "run")
    printed = warm.run(folder, str(folder / "script.py"), HOLDFAST_RUN=str(run.path), HOLDFAST_POLICY=policy)
    return run, printed


def rows(run: RunFolder, columns: str, table: str = "steps") -> list[list[float]]:
    answer = typed("query", "-t", str(run.path), "--json", f"SELECT {columns} FROM {table}", folder=run.path)
    return [list(row.values()) for row in json.loads(answer.stdout)]


def recorded(run: RunFolder) -> list[tuple[float, ...]]:
    return [tuple(row) for row in rows(run, "part, count(*) AS steps", "steps GROUP BY part ORDER BY part")]


def test_nan_in_one_thread_costs_the_trainings_of_other_threads_nothing(warm: WarmPython, tmp_path: Path) -> None:
    healthy, bare = run_of(warm, tmp_path / "healthy", THREADS.replace("WITH_NAN", "False"))
    run, printed = run_of(warm, tmp_path / "nan", THREADS.replace("WITH_NAN", "True"))
    assert printed.split()[1:] == bare.split()[1:], "to the last bit"
    assert "nan" not in printed
    assert not findings_of(healthy.path)
    losses = sorted(json.loads((tmp_path / "healthy/losses.json").read_text()).values())
    assert recorded(healthy) == [(0, 120), (1, 120), (2, 120)]
    read = sorted([loss for (loss,) in rows(healthy, "loss", f"steps WHERE part = {part} ORDER BY step")] for part in range(3))
    assert read == [pytest.approx(one) for one in losses], "each recording has the losses of its own thread"
    assert recorded(run) == [(0, 120), (1, 120), (2, 120)]
    skipped = rows(run, "part, count(*)", "steps WHERE loss IS NULL OR isnan(loss) GROUP BY part")
    assert len(skipped) == 1 and skipped[0][1] == 9


def test_the_inner_loops_of_a_training_are_guarded_and_journalled_and_make_no_recordings(
    warm: WarmPython, tmp_path: Path
) -> None:
    run, _ = run_of(warm, tmp_path, MAML)
    ((part, steps),) = recorded(run)
    assert part == 0 and steps == pytest.approx(40, abs=20), "one training, that of the outer loop"
    actions = [row for row in run.journal if row["kind"] == "action"]
    assert actions and {row["action"] for row in actions} == {"skip-batch"}
    assert all(row["evidence"]["optimizer"] == "SGD of an inner loop" for row in findings_of(run.path))


@pytest.mark.parametrize(("script", "steps"), [(PGD, 40), (LATENTS, 800)], ids=["pgd", "latents"])
def test_optimizers_that_come_and_go_are_one_training(warm: WarmPython, tmp_path: Path, script: str, steps: int) -> None:
    run, _ = run_of(warm, tmp_path, script, policy="observe")
    assert recorded(run) == [(0, steps)]
    assert not findings_of(run.path)


def test_a_second_training_is_recorded_from_its_first_step_although_the_first_could_go_on(
    warm: WarmPython, tmp_path: Path
) -> None:
    run, _ = run_of(warm, tmp_path, TWO_STAGES, policy="observe")
    assert recorded(run) == [(0, 30), (1, 30), (2, 5)]
    assert rows(run, "DISTINCT part, round(lr, 3)", "steps ORDER BY part") == [[0, 0.01], [1, 0.02], [2, 0.03]]
    assert [step for (step,) in rows(run, "step", "steps WHERE part = 1 ORDER BY step")] == list(range(30))


def test_a_script_that_ends_with_os_exit_loses_no_step(warm: WarmPython, tmp_path: Path) -> None:
    run, _ = run_of(warm, tmp_path, ENDS_AT_ONCE, policy="observe")
    assert recorded(run) == [(0, 100)]


@pytest.mark.parametrize("update", UPDATES)
def test_a_script_without_a_torch_optimizer_is_recorded_and_guarded(warm: WarmPython, tmp_path: Path, update: str) -> None:
    script = BY_HAND.replace("UPDATE", UPDATES[update])
    run, printed = run_of(warm, tmp_path, script, policy="heal")
    assert float(printed) < 0.1, "one bad batch did not end it"
    assert [step for (step,) in rows(run, "step", "steps ORDER BY step")] == list(range(15, 100)), "once it is certain"
    assert rows(run, "step", "steps WHERE skipped = 1") == [[60]]
    warning, *found = findings_of(run.path)
    assert "without a torch optimizer" in warning["evidence"]["error"], "what cannot be done is said"
    assert [(row["code"], row["step"]) for row in found] == [("non-finite-loss", 60), ("non-finite-input", 60)]


def test_backward_passes_without_updates_are_no_training(warm: WarmPython, tmp_path: Path) -> None:
    run, _ = run_of(warm, tmp_path, ONLY_GRADIENTS)
    assert run.recordings() == []


LARGE_DATA = """
import gc, re, torch
from pathlib import Path
from torch.utils.data import DataLoader

samples = [[float(number)] for number in range(400_000)]  # one object for each, as file lists and annotations are
gc.collect()
gc.disable()  # Python's own would touch them, too

def shared(pid):
    return sum(map(int, re.findall(r"^Shared_Dirty: +([0-9]+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.M))) >> 10

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return len(samples)
    def __getitem__(self, index):
        return torch.tensor(samples[index])

model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batches = iter(DataLoader(Data(), batch_size=4, num_workers=1, multiprocessing_context="fork"))
before = None
for step in range(20):
    loss = model(next(batches)).square().mean()
    before = before or shared(batches._workers[0].pid)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(before, shared(batches._workers[0].pid))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="shared memory is read from /proc")
def test_data_in_memory_stays_shared_with_forked_workers(warm: WarmPython, tmp_path: Path) -> None:
    _, printed = run_of(warm, tmp_path, LARGE_DATA, policy="guard")
    before, after = map(int, printed.split())
    assert after > before - 15, "in MB; asking for every object would cost more than 25"


FUNCTIONAL = """
import torch
torch.manual_seed(0)
weights = torch.zeros(4, requires_grad=True)
data, labels = torch.randn(64, 4), torch.randn(64)
loss = lambda w: (data @ w - labels).square().mean()
for _ in range(100):
    gradient = torch.func.grad(loss)(weights) if {functional} else torch.autograd.grad(loss(weights), weights)[0]
    weights = (weights - 0.1 * gradient).detach().requires_grad_()
print("done")
"""


@pytest.mark.parametrize("functional", [False, True])
def test_a_loop_that_cannot_be_seen_is_said_at_the_end(tmp_path: Path, functional: bool) -> None:
    (tmp_path / "train.py").write_text(FUNCTIONAL.replace("{functional}", str(functional)))
    done = run(tmp_path, "--name", "a", PYTHON, "train.py")
    assert done.returncode == 0 and done.stdout == "done\n"
    assert "finished, but no step was recorded: gradients were computed 100 times with torch.autograd.grad" in done.stderr
