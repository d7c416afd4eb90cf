"""Under `heal` a command that died goes on from its last clean checkpoint, and ends as it would have without the fault."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import PYTHON, VICTIMS, findings_of, info_of, run, typed
from watched_training import WarmPython

from holdfast.logs.holdfast_run import read_run
from holdfast.probe.rows import last_rows
from holdfast.signals.run_folder import RunFolder

FALTERS = str(VICTIMS / "falters.py")
SOON = {"HOLDFAST_BACK_OFF": "0.1"}
RESUME = ("--resume-args", "--resume {checkpoint}")
TRACKED = """
import os, time, urllib.request, torch
torch.manual_seed(0)
where = os.environ["MLFLOW_TRACKING_URI"]
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.01)
    if where.startswith("http"):
        urllib.request.urlopen(where, data=str(step).encode(), timeout=60).close()
print("logged to", where)
"""
SERVER = """
import os, runpy, socket, threading
if os.environ.get("HOLDFAST_ATTEMPT", "1") == "1":
    server = socket.create_server(("127.0.0.1", 0))
    os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:%d" % server.getsockname()[1]
    def answer():
        for _ in range(30):
            one, _ = server.accept()
            one.recv(65536)
            one.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
            one.close()
        server.close()
    threading.Thread(target=answer, daemon=True).start()
runpy.run_path("train.py", run_name="__main__")
"""

REFUSES = """
import os, time, pathlib, torch
torch.manual_seed(0)
out = pathlib.Path("out")
out.mkdir(exist_ok=True)
if any(out.glob("*.pt")):
    raise ValueError(f"Files are already present in the directory {out}.")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(60):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.02)
    if step == 20:
        torch.save({"model": model.state_dict()}, out / "a.pt")
    if step == 40 and os.environ.get("HOLDFAST_ATTEMPT", "1") == "1":
        raise OSError("a share is gone")
"""

FOLDER_PER_SAVE = """
import os, pathlib, signal, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
saves = sorted(pathlib.Path("out").glob("save-*"))
first = 0
if saves:
    state = torch.load(saves[-1] / "state.pt")
    model.load_state_dict(state["model"])
    first = state["step"]
for step in range(first, 60):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.01)
    if step % 10 == 9:
        save = pathlib.Path(f"out/save-{step + 1}")
        save.mkdir(parents=True)
        torch.save({"model": model.state_dict(), "step": step + 1}, save / "state.pt")
        if step == 39 and os.environ.get("HOLDFAST_ATTEMPT", "1") == "1":
            os.truncate(save / "state.pt", 500)
            os.kill(os.getpid(), signal.SIGKILL)
print("end")
"""

LIGHT_SAVES = """
import os, pathlib, pickle, signal, sys, time, torch
torch.manual_seed(0)
out, how = pathlib.Path("out"), sys.argv[1]
out.mkdir(exist_ok=True)
saves = sorted(out.glob("*.pt"))
first = int(saves[-1].stem) if saves else 0

class Trainer:
    def __init__(self):
        self.model = torch.nn.Linear(4, 1)
        kind = torch.optim.SGD if how in ("trainer", "pickled") else torch.optim.Adam
        self.optimizer = kind(self.model.parameters(), lr=0.01)
        self.model.optimizer = self.optimizer if how == "whole" else None

trainer = Trainer()
loaded = torch.load(saves[-1], weights_only=False) if saves and how != "pickled" else None
if saves and how == "pickled":
    trainer = pickle.loads(saves[-1].read_bytes())
elif saves and how == "trainer":
    trainer = loaded["trainer"]
elif saves and how == "whole":
    trainer.model, trainer.optimizer = loaded, loaded.optimizer
elif saves:
    trainer.model.load_state_dict(loaded)
model, optimizer = trainer.model, trainer.optimizer
before = model.weight.detach().clone()
for step in range(first, 60):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.02)
    if step % 20 == 19:
        content = {"trainer": trainer, "whole": model, "weights": model.state_dict()}
        if how == "pickled":
            (out / f"{step + 1:03d}.pt").write_bytes(pickle.dumps(trainer))
        else:
            torch.save({"trainer": trainer} if how == "trainer" else content[how], out / f"{step + 1:03d}.pt")
    if step == 55 and os.environ.get("HOLDFAST_ATTEMPT", "1") == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    if step == 58:
        print("learns" if not torch.equal(model.weight, before) else "learns nothing")
"""

NEEDS_GRADIENTS = """
import os, signal, time, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(60):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward()
    if not model.weight.grad.any():
        raise RuntimeError("no gradient")
    optimizer.step()
    time.sleep(0.02)
    if step == 45 and os.environ.get("HOLDFAST_ATTEMPT", "1") == "1":
        os.kill(os.getpid(), signal.SIGKILL)
print("weights", model.weight.tolist())
"""

STOPS_EARLY = """
import os, signal, time, torch
first = os.environ.get("HOLDFAST_ATTEMPT", "1") == "1" and "HOLDFAST_RUN" in os.environ
torch.manual_seed(0)
inputs = torch.randn(256, 8)
targets = inputs.square().sum(1, keepdim=True).sin()
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
best, bad = float("inf"), 0
for epoch in range(12):
    for step in range(10 * epoch, 10 * epoch + 10):
        chosen = torch.randperm(256)[:32]
        loss = torch.nn.functional.mse_loss(model(inputs[chosen]), targets[chosen])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(0.02 if first else 0)
        if step == 75 and first:
            os.kill(os.getpid(), signal.SIGKILL)
    with torch.no_grad():
        held_out = torch.nn.functional.mse_loss(model(inputs), targets).item()
    best, bad = (held_out, 0) if held_out < best else (best, bad + 1)
    if bad == 3:
        break
print("weights", step, [float(p.detach().double().sum()) for p in model.parameters()])
"""

SEVERAL = """
import os, pathlib, signal, sys, time, torch
torch.manual_seed(0)
inputs = torch.randn(256, 8)
targets = inputs.square().sum(1, keepdim=True).sin()

def make():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)

def weights(model):
    return [float(p.detach().double().sum()) for p in model.parameters()]

def steps(number, model, optimizer, first, last):
    for step in range(first, last):
        chosen = torch.randperm(256)[:32]
        loss = torch.nn.functional.mse_loss(model(inputs[chosen]), targets[chosen])
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        time.sleep(0.02 if sys.argv[2:] else 0)
        if (number, step) == (1, 90) and os.environ.get("HOLDFAST_ATTEMPT", "1") == "1" and sys.argv[2:]:
            os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1].endswith("folds"):  # one after the other, as in a cross-validation
    found = []
    for number in range(3):
        torch.manual_seed(number)
        path = pathlib.Path(f"fold-{number}.pt")
        if path.exists():
            model = torch.load(path, weights_only=False)
        else:
            model, optimizer = make()
            steps(number, model, optimizer, 0, 120)
        found += weights(model)
        if sys.argv[1] == "finished-folds" and sys.argv[2:]:
            torch.save(model, path)
else:  # in turns, as in an ensemble
    pairs = [make() for number in range(3)]
    for first in range(0, 120, 40):
        for number, (model, optimizer) in enumerate(pairs):
            steps(number, model, optimizer, first, first + 40)
    found = [number for model, optimizer in pairs for number in weights(model)]
print("weights", found)
"""

JUMPS = """
import os, pathlib, sys, time, torch
torch.manual_seed(0)
inputs = torch.randn(256, 8)
targets = inputs.square().sum(1, keepdim=True).sin()
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.2, 400)
for step in range(400):
    chosen = torch.randperm(256)[:32]
    if step == 150 and sys.argv[1:] == ["jumps"] and not pathlib.Path("met").exists():
        pathlib.Path("met").touch()
        for group in optimizer.param_groups:
            group["lr"] *= 300
    if step == 300 and optimizer.param_groups[0]["lr"] > 0.1:
        time.sleep(600)  # until it is ended
    loss = torch.nn.functional.mse_loss(model(inputs[chosen]), targets[chosen])
    optimizer.zero_grad(); loss.backward(); optimizer.step(); schedule.step()
    time.sleep(0.02)
print("weights", [float(p.double().sum()) for p in model.parameters()])
"""

KEEPS_OBJECTS = """
import os, time, pathlib, torch
class Settings: pass
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if path := os.environ.get("HOLDFAST_CHECKPOINT"):
    model.load_state_dict(torch.load(path)["model"])
for step in range(60):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    time.sleep(0.02)
    if step == 20:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "settings": Settings()}, "last.pt")
    if step == 40 and not pathlib.Path("met").exists():
        pathlib.Path("met").touch()
        raise ValueError("sample 4711 has no label")
print("end")
"""


@pytest.fixture(scope="module")
def undisturbed(warm: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The last line of the same training without a fault and without Holdfast."""
    return warm.run(tmp_path_factory.mktemp("undisturbed"), FALTERS, "none", "0", "--pause", "0")


def restarts_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]
    return [row for row in rows if row.get("action") == "restart"]


def test_a_script_that_resumes_ends_with_the_same_weights_after_a_hung_worker_and_a_kill(
    tmp_path: Path, undisturbed: str
) -> None:
    words = ("--policy", "heal", "--name", "a", "--hang-after", "2", *RESUME)
    script = (FALTERS, "worker-hang", "50", "--then", "kill", "70", "--own", "--workers", "2")
    done = run(tmp_path, *words, PYTHON, *script, env=SOON, timeout=600)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] + "\n" == undisturbed
    (hang, end) = (row for row in findings_of(tmp_path / "runs/a") if row["severity"] == "critical")
    assert hang["code"] == "loader-stall" and "worker" in hang["evidence"]["say"] and end["code"] == "process-died"
    hung, killed = restarts_of(tmp_path / "runs/a")
    assert (hung["because"], hung["state"], hung["checkpoint_step"]) == ("loader-stall", "done", 40)
    assert (killed["because"], killed["state"], killed["checkpoint_step"]) == ("process-died", "done", 60)
    assert killed["checkpoint"] == str(tmp_path / "last.pt")


def steps_of_the_second_attempt(folder: Path) -> list[int]:
    return [int(step) for step in last_rows(folder / "rank-0.1", "steps", ("step",), 1000)["step"]]


@pytest.mark.slow
def test_a_confirmed_flag_is_used_by_later_runs_of_the_script_and_the_steps_done_again_are_counted(
    tmp_path: Path, undisturbed: str
) -> None:
    confirming = run(tmp_path, "--policy", "heal", *RESUME, PYTHON, FALTERS, "none", "0", "--steps", "5", env=SOON, timeout=600)
    assert confirming.returncode == 0
    words = ("--policy", "heal", "--name", "a", PYTHON, FALTERS, "kill", "51", "--own")
    done = run(tmp_path, *words, env=SOON, timeout=600)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] + "\n" == undisturbed
    (row,) = restarts_of(tmp_path / "runs/a")
    assert (row["resumed_with"], row["checkpoint_step"], row["done_again"]) == (f"--resume {tmp_path / 'last.pt'}", 40, 12)
    assert row["step"] == 51 and steps_of_the_second_attempt(tmp_path / "runs/a") == [*range(40, 120)]
    assert "from last.pt (step 40) with --resume, 12 steps repeated" in done.stderr
    assert done.stderr.endswith(", resumed from last.pt (12 steps repeated): holdfast diagnose a\n")


@pytest.mark.slow
def test_a_flag_with_which_the_script_does_not_start_is_tried_once_and_then_it_is_fast_forwarded(
    tmp_path: Path, undisturbed: str
) -> None:
    words = ("--policy", "heal", "--name", "a", "--restarts", "1", "--resume-args", "--from {checkpoint}")
    script = (PYTHON, FALTERS, "kill", "100", "--own")
    done = run(tmp_path, *words, *script, env={**SOON, "HOLDFAST_SAVE_EVERY": "0.3"}, timeout=600)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] + "\n" == undisturbed
    tried, without = restarts_of(tmp_path / "runs/a")
    assert tried["resumed_with"].startswith("--from ") and without["flag_failed"] and "resumed_with" not in without
    assert "without --from: the script ended before its first step with it" in done.stderr
    assert "resumed from" not in done.stderr and "holdfast: training continues at step" in done.stderr


@pytest.mark.slow
def test_a_checkpoint_that_the_script_cannot_load_is_tried_once_and_then_left_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(KEEPS_OBJECTS)
    done = run(tmp_path, "--policy", "heal", "--name", "a", PYTHON, "train.py", env=SOON, timeout=600)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "end"
    assert [row["because"] for row in restarts_of(tmp_path / "runs/a")] == ["script-error", "checkpoint-incompatible"]
    assert done.stderr.count("Weights only load failed") == 1 and "could not load what it had saved" in done.stderr


@pytest.mark.slow
def test_a_damaged_save_is_moved_for_a_script_that_resumes_from_its_newest_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FOLDER_PER_SAVE)
    done = run(tmp_path, "--policy", "heal", "--name", "a", PYTHON, "train.py", env=SOON, timeout=600)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "end"
    moved = tmp_path / "out/damaged/attempt-1/save-40"
    assert f"the damaged checkpoint moved to {moved}" in done.stderr and (moved / "state.pt").stat().st_size == 500
    assert [row["because"] for row in restarts_of(tmp_path / "runs/a")] == ["process-died", "checkpoint-torn"]
    assert sorted(path.name for path in (tmp_path / "out").glob("save-*")) == [f"save-{step}" for step in range(10, 70, 10)]


@pytest.mark.parametrize("saves", ["whole", "weights", "trainer", "pickled"])
def test_a_script_that_resumes_from_a_pickled_model_or_trainer_or_from_weights_alone_is_not_fast_forwarded(
    tmp_path: Path, saves: str
) -> None:
    (tmp_path / "train.py").write_text(LIGHT_SAVES)
    env = {**SOON, "HOLDFAST_SAVE_EVERY": "0.1"}
    done = run(tmp_path, "--policy", "heal", "--name", "a", PYTHON, "train.py", saves, env=env, timeout=600)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "learns", done.stderr
    (restart,) = restarts_of(tmp_path / "runs/a")
    assert restart["checkpoint_step"] > 40, "Holdfast's own is newer, but the script's loop begins at its own step 40"
    assert "fast-forwarding" not in done.stderr and "the script resumes by itself" in done.stderr
    if saves != "pickled":  # which nobody sees being read
        assert "by itself, at step 40" in done.stderr
        assert read_run(RunFolder.open(tmp_path / "runs/a")).num_steps == 60, "it is counted on from there"


def test_a_script_that_fails_while_it_is_fast_forwarded_gets_all_its_passes_the_next_time(
    tmp_path: Path, warm: WarmPython
) -> None:
    script = tmp_path / "train.py"
    script.write_text(NEEDS_GRADIENTS)
    undisturbed = warm.run(tmp_path, str(script), HOLDFAST_ATTEMPT="2").splitlines()[-1]
    env = {**SOON, "HOLDFAST_SAVE_EVERY": "0.1"}
    done = run(tmp_path, "--policy", "heal", "--name", "a", PYTHON, "train.py", env=env, timeout=600)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == undisturbed, done.stderr
    first, second = restarts_of(tmp_path / "runs/a")
    assert (first["because"], second["because"]) == ("process-died", "script-error")
    assert "forward and backward passes run while it is fast-forwarded" in second["detail"]


def test_a_script_that_stops_early_while_it_is_fast_forwarded_is_started_from_scratch(tmp_path: Path, warm: WarmPython) -> None:
    script = tmp_path / "train.py"
    script.write_text(STOPS_EARLY)
    undisturbed = warm.run(tmp_path, str(script)).splitlines()[-1]
    env = {**SOON, "HOLDFAST_SAVE_EVERY": "0.1"}
    done = run(tmp_path, "--policy", "heal", "--name", "a", PYTHON, "train.py", env=env, timeout=600)
    *before, last = [line for line in done.stdout.splitlines() if line.startswith("weights")]
    assert done.returncode == 0 and last == undisturbed, done.stderr
    assert before and before[0].startswith("weights 3"), "after three evaluations of the same state"
    _, second = restarts_of(tmp_path / "runs/a")
    assert second["detail"] == "from the start: the script stops early while it is fast-forwarded"


@pytest.mark.parametrize("how", ["folds", "finished-folds", "turns"])
def test_each_of_several_trainings_is_brought_to_where_it_was_itself(tmp_path: Path, warm: WarmPython, how: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SEVERAL)
    undisturbed = warm.run(tmp_path, str(script), how).splitlines()[-1]
    env = {**SOON, "HOLDFAST_SAVE_EVERY": "0.1"}
    done = run(tmp_path, "--policy", "heal", "--name", "a", PYTHON, "train.py", how, "dies", env=env, timeout=600)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == undisturbed, done.stderr
    (restart,) = restarts_of(tmp_path / "runs/a")
    assert restart["because"] == "process-died"
    begun = {"folds": 2, "finished-folds": 1, "turns": 3}[how]
    assert done.stderr.count("training continues at step") == begun, done.stderr
    kept = len(list((tmp_path / "runs/a/checkpoints").glob("step-*")))
    assert kept == 1 if how == "folds" else kept > 0, "of a training that is over, the last state is enough"


@pytest.mark.slow
def test_checkpoints_are_moved_for_a_script_that_refuses_to_start_beside_them(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(REFUSES)
    done = run(tmp_path, "--policy", "heal", "--name", "a", PYTHON, "train.py", env=SOON, timeout=600)
    assert done.returncode == 0
    assert done.stderr.count("ValueError: Files are already present") == 2, "its own traceback, and the line of the restart"
    assert f"earlier checkpoints moved to {tmp_path / 'out/attempt-1'}" in done.stderr
    assert (tmp_path / "out/attempt-1/a.pt").exists() and (tmp_path / "out/a.pt").exists()


@pytest.mark.slow
def test_a_script_that_cannot_resume_is_fast_forwarded_after_an_error_and_the_error_is_reported(
    tmp_path: Path, undisturbed: str
) -> None:
    words = ("--policy", "heal", "--name", "a", PYTHON, FALTERS, "raise", "100", "--pause", "0.01")
    done = run(tmp_path, *words, env={**SOON, "HOLDFAST_SAVE_EVERY": "0.3"}, timeout=600)
    assert done.returncode == 0 and done.stdout.splitlines()[-1] + "\n" == undisturbed
    theirs, ours = done.stderr.split("ValueError: sample 4711 has no label\n")
    assert "Traceback" in theirs and ours.startswith("holdfast: ended with ValueError after step 100 (exit 1) [script-error]")
    assert re.search(r"holdfast: training continues at step \d+", ours)
    (row,) = restarts_of(tmp_path / "runs/a")
    assert row["because"] == "script-error" and row["checkpoint_step"] > 0
    (error,) = (one for one in findings_of(tmp_path / "runs/a") if one["code"] == "script-error")
    assert error["evidence"]["error"] == "ValueError: sample 4711 has no label"
    shown = json.loads(typed("diagnose", "a", "--json", folder=tmp_path).stdout)["runs"][0]
    assert "script-error" in [one["code"] for one in shown["findings"]]


@pytest.mark.slow  # tests/unit/recovery/test_judge.py decides the same
def test_a_roll_back_early_in_a_run_makes_the_undone_steps_again_and_ends_with_the_weights_of_a_run_without_the_fault(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(JUMPS)
    undisturbed = run(tmp_path, "--name", "undisturbed", PYTHON, "train.py")
    done = run(tmp_path, "--policy", "heal", "--name", "a", PYTHON, "train.py", "jumps", env=SOON)
    (restart,) = restarts_of(tmp_path / "runs/a")
    assert restart["because"] == "loss-divergence" and 0 < restart["checkpoint_step"] <= 150, restart
    assert "learning rate kept under 0.00" in restart["detail"]
    assert done.returncode == 0 and done.stdout == undisturbed.stdout, done.stderr
    assert read_run(RunFolder.open(tmp_path / "runs/a")).num_steps == 400, "it is diagnosed over both attempts"


@pytest.mark.slow
def test_a_training_whose_tracker_is_gone_resumes_with_trackers_offline(tmp_path: Path) -> None:
    """The server goes away at step 30, and stays away."""
    (tmp_path / "train.py").write_text(TRACKED)
    (tmp_path / "serve.py").write_text(SERVER)
    words = ("--policy", "heal", "--name", "a", PYTHON, "serve.py")
    done = run(tmp_path, *words, env={**SOON, "HOLDFAST_SAVE_EVERY": "0.05"}, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "URLError" in done.stderr and "[tracker-unreachable]" in done.stderr and "trackers offline" in done.stderr
    (row,) = restarts_of(tmp_path / "runs/a")
    assert (row["because"], row["state"]) == ("tracker-unreachable", "done")
    assert "sqlite:///" in done.stdout.splitlines()[-1] and str(tmp_path / "runs/a/trackers") in done.stdout.splitlines()[-1]


@pytest.mark.slow  # tests/unit/recovery/test_restart.py decides the same
def test_a_fault_that_comes_again_at_the_same_step_ends_the_restarts(tmp_path: Path) -> None:
    words = ("--policy", "heal", "--name", "a", "--restarts", "9", *RESUME, PYTHON, FALTERS, "raise", "50", "--own", "--always")
    done = run(tmp_path, *words, env=SOON)
    assert done.returncode == 1
    rows = restarts_of(tmp_path / "runs/a")
    assert [row["state"] for row in rows] == ["done", "done", "refused"]
    assert "not restarted: 3 attempts ended at step 50" in done.stderr


def test_a_template_that_names_what_is_not_known_is_refused_in_words(tmp_path: Path) -> None:
    done = run(tmp_path, "--resume-args", "--from {file}", PYTHON, "-c", "print(1)")
    assert done.returncode == 2 and "{file}" in done.stderr and "{checkpoint}" in done.stderr and done.stdout == ""


@pytest.mark.slow
def test_a_rank_that_the_others_wait_for_is_named_and_all_ranks_resume_from_the_same_checkpoint(tmp_path: Path) -> None:
    launch = (PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    words = ("--policy", "heal", "--name", "a", "--hang-after", "2", *RESUME)
    done = run(tmp_path, *words, *launch, str(VICTIMS / "ranks_that_falter.py"), "25", env=SOON, timeout=600)
    assert done.returncode == 0, done.stderr
    (stall,) = (one for one in findings_of(tmp_path / "runs/a") if one["severity"] == "critical")
    assert stall["code"] == "collective-stall" and stall["evidence"]["missing"] == [1]
    assert "rank 1 is in read() of a pipe in wait_for_settings()" in stall["evidence"]["say"]
    assert re.search(r"ranks_that_falter\.py:\d+ in wait_for_settings$", stall["evidence"]["where"])
    assert sorted(re.findall(r"rank \d begins at \d+", done.stdout)) == [
        *("rank 0 begins at 0", "rank 0 begins at 20", "rank 1 begins at 0", "rank 1 begins at 20")
    ]
    ends = dict(re.findall(r"rank (\d) ends at 60 with (\S+)", done.stdout))
    assert set(ends) == {"0", "1"} and ends["0"] == ends["1"]
    (row,) = restarts_of(tmp_path / "runs/a")
    assert row["because"] == "collective-stall"
    recordings = sorted(path.name for path in (tmp_path / "runs/a").glob("rank-*"))
    assert recordings == ["rank-0", "rank-0.1", "rank-1", "rank-1.1"]  # each rank in both attempts, and nothing of torchrun
    assert info_of(tmp_path / "runs/a")["world_size"] == 2
