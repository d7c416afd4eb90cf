"""A live training is asked: code between two steps, changes, saves, pauses. One process for all of it, changed as it goes."""

from __future__ import annotations

import getpass
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from asked_run import AskedRun
from holdfast_run import PYTHON, VICTIMS, start, typed, wait_until

import holdfast
from holdfast.checkpoints.read import verify_checkpoint
from holdfast.errors import ControlUnreachable
from holdfast.probe.changing import change
from holdfast.probe.control_client import ask, listening
from holdfast.probe.rows import last_rows
from holdfast.probe.state import read_state
from holdfast.signals.control_socket import connect_to, send
from holdfast.signals.pulse import read_pulse

OURS = str(Path(holdfast.__file__).parent)  # no line of ours is shown; the clone itself may be called holdfast
LR = '[group["lr"] for group in optimizer.param_groups]'


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AskedRun]:
    folder = tmp_path_factory.mktemp("asked")
    with (folder / "output").open("w") as output:
        process = start(folder, "--name", "live", "--", PYTHON, str(VICTIMS / "plain_script.py"), "170", stdout=output)
        try:
            found = AskedRun(folder, "live")
            found.wait()
            yield found
        finally:
            process.terminate()
            process.wait(600)


# What people type; each as it is


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ('[(g["lr"], g["weight_decay"]) for g in optimizer.param_groups]', r"\[\(0.001, 0.01\), \(0.0005, 0.01\)\]"),
        ('for g in optimizer.param_groups: g["lr"] *= 0.1', "None"),
        (
            "{n: bool(p.grad.isnan().any() | p.grad.isinf().any()) for n, p in model.named_parameters()}",
            "{'0.weight': False, .*}",
        ),
        ("torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)", r"tensor\([\d.e-]+\)"),
        ("train_loader.num_workers, train_loader.prefetch_factor", r"\(1, 3\)"),
        ("threading.enumerate()", r"\[<_MainThread\(MainThread(?!.*holdfast).*\]"),
        ("model.zero_grad(set_to_none=True); gc.collect()", r"\d+"),
        ("loss", r"tensor\(.*grad_fn=.*\)"),
    ],
)
def test_a_statement_works_as_it_is_typed(asked: AskedRun, code: str, value: str) -> None:
    assert re.fullmatch(value, str(asked.value(code))), value


def test_an_emergency_checkpoint_can_be_saved_with_torch(asked: AskedRun, tmp_path: Path) -> None:
    path = tmp_path / "emergency.pt"
    asked.value(f'torch.save({{"model": model.state_dict(), "optimizer": optimizer.state_dict()}}, {str(path)!r})')
    assert set(torch.load(path, weights_only=True)) == {"model", "optimizer"}


def test_without_a_process_group_the_plain_error_comes_back_and_the_exit_code_is_1(asked: AskedRun) -> None:
    done = asked.type("eval", "dist.get_rank()")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Default process group has not been initialized" in done.stderr
    assert OURS not in done.stderr


# Names, output, errors


def test_an_assignment_to_a_global_is_seen_by_the_loop(asked: AskedRun) -> None:
    asked.value("speed = 21")
    wait_until(lambda: asked.value("seen") == "42")
    asked.value("global speed\nspeed = 4")
    wait_until(lambda: asked.value("seen") == "8")


def test_names_that_the_code_makes_stay_its_own(asked: AskedRun) -> None:
    asked.value("mine = 3\ndef twice(): return mine * 2 * len(train_loader)")
    assert asked.value("twice()") == "48"
    assert asked.value('"mine" in vars(__import__("__main__"))') == "False"


def test_output_goes_to_who_asked_and_not_to_the_script(asked: AskedRun) -> None:
    code = 'import sys\nprint("out of the code")\nprint("err of the code", file=sys.stderr)\nspeed'
    done = asked.type("eval", "-", stdin=code)
    assert done.stdout.splitlines()[:2] == ["out of the code", "err of the code"]
    assert "of the code" not in (asked.path / "train.log").read_text()
    assert "of the code" not in (asked.folder / "output").read_text()


def test_an_error_tells_the_senders_lines_and_nothing_of_ours(asked: AskedRun) -> None:
    answer = asked.eval("def f():\n    return 1 / 0\nf()")
    assert answer["error"].splitlines()[-1] == "ZeroDivisionError: division by zero"
    assert "return 1 / 0" in answer["error"]
    assert OURS not in answer["error"]
    assert "SyntaxError" in asked.eval("def")["error"]
    assert "SystemExit" in asked.eval("raise SystemExit(3)")["error"]


def test_input_is_at_its_end_at_once(asked: AskedRun) -> None:
    assert "EOFError" in asked.eval("input()")["error"]


def test_code_that_takes_too_long_is_stopped_and_the_training_goes_on(asked: AskedRun) -> None:
    before = asked.eval("1")["step"]
    assert "too long" in asked.eval("while True: pass", seconds=0.3)["error"]
    assert "too long" in asked.eval("while True: pass", seconds=0.3, now=True)["error"]
    wait_until(lambda: asked.eval("1")["step"] > before + 20)


def test_code_of_someone_who_has_gone_is_stopped(asked: AskedRun) -> None:
    (recording,) = listening(asked.run)
    with connect_to(recording.path, 5) as connection:
        send(connection, {"do": "eval", "code": "while True: pass", "seconds": 60})
        wait_until(lambda: "<eval>" in str(ask(recording, {"do": "stacks"}, seconds=5)["threads"]))
    step = asked.eval("1")["step"]
    wait_until(lambda: asked.eval("1")["step"] > step)


@contextmanager
def held(asked: AskedRun, released: Path) -> Iterator[None]:
    """The training stands still between two steps."""
    (recording,) = listening(asked.run)
    code = f"import os, time\nwhile not os.path.exists({str(released)!r}): time.sleep(0.01)"
    holding = threading.Thread(target=asked.eval, args=(code,), kwargs={"seconds": 120})
    holding.start()
    try:
        wait_until(lambda: "<eval>" in str(ask(recording, {"do": "stacks"}, seconds=60)["threads"]))
        yield
    finally:
        released.touch()
        holding.join()


def test_now_does_not_wait_for_a_step_and_what_waits_in_vain_is_withdrawn(asked: AskedRun, tmp_path: Path) -> None:
    (recording,) = listening(asked.run)
    with held(asked, tmp_path / "released"):
        answer = asked.eval("speed", seconds=0.4)
        assert "no step within 0.4 s" in answer["error"] and "--now" in answer["error"]
        assert asked.value("speed", now=True) is not None
        assert asked.value("batch.shape", now=True) == "torch.Size([32, 16])"
    assert "MainThread" in str(ask(recording, {"do": "stacks"}, seconds=5)["threads"])


GRADIENTS = "[float(p.grad.norm()) for p in model.parameters()]"


@pytest.mark.parametrize("code", [GRADIENTS, "loss", "model.state_dict()", "import numpy; numpy.asarray(batch)", "model(batch)"])
def test_beside_a_training_that_runs_no_tensor_is_touched(asked: AskedRun, code: str) -> None:
    before = asked.eval("1")["step"]
    for _ in range(20):  # reading gradients so crashed the process in one of seven tries
        assert "TensorInUse: the training may be writing this tensor" in asked.eval(code, now=True)["error"]
    assert asked.value("[tuple(p.shape) for p in model.parameters()][1]", now=True) == "(32,)"
    (recording,) = listening(asked.run)
    assert ask(recording, {"do": "complete", "text": "model.weight.grad.is_n"}, seconds=5)["names"] == []
    wait_until(lambda: asked.eval("1")["step"] > before + 5)


def test_beside_a_training_that_is_paused_tensors_can_be_read_at_once(asked: AskedRun) -> None:
    asked.change("pause")
    try:
        wait_until(lambda: asked.eval(GRADIENTS, now=True)["ok"])
    finally:
        asked.change("continue")


def test_beside_a_training_that_hangs_tensors_can_be_read(asked: AskedRun, tmp_path: Path) -> None:
    with held(asked, tmp_path / "released"):
        assert asked.value(f"len({GRADIENTS})", now=True, seconds=60) == "4"


# Changes


def test_a_change_without_a_name_says_of_which_run_it_can_be_undone(asked: AskedRun) -> None:
    done = typed("set", "lr*=1.0", folder=asked.folder)
    undo = done.stdout.split("undo with: ")[1].split()
    assert undo[:3] == ["holdfast", "undo", asked.path.name] and typed(*undo[1:], folder=asked.folder).returncode == 0


def test_a_learning_rate_that_a_scheduler_writes_at_every_step_stays_changed(asked: AskedRun) -> None:
    first = asked.change("set", text="lr=1e-4")
    assert (first.answer["from"], first.answer["to"]) == ([0.001, 0.0005], 0.0001)
    second = asked.change("set", text="lr*=0.5")
    steps = asked.eval("1")["step"] + 8
    wait_until(lambda: asked.eval("1")["step"] > steps)
    assert asked.value(LR) == "[5e-05, 5e-05]"
    assert asked.value("scheduler.get_last_lr()") == "[0.001, 0.0005]"
    wait_until(lambda: float(last_rows(asked.path / "rank-0", "steps", ("lr",), 1)["lr"][-1]) == 5e-05)
    asked.change("undo", change=first.answer["number"])
    assert asked.value(LR) == "[0.0005, 0.00025]"
    asked.change("undo", change=second.answer["number"])
    assert asked.value(LR) == "[0.001, 0.0005]"


def test_one_group_and_other_settings_can_be_changed_and_an_undo_can_be_undone(asked: AskedRun) -> None:
    made = asked.change("set", text="weight_decay[1]=0.3").answer
    decay = '[group["weight_decay"] for group in optimizer.param_groups]'
    assert asked.value(decay) == "[0.01, 0.3]"
    undone = asked.change("undo", number=made["number"]).answer
    assert asked.value(decay) == "[0.01, 0.01]"
    again = asked.change("undo", change=undone["number"]).answer
    assert asked.value(decay) == "[0.01, 0.3]"
    asked.change("undo", change=again["number"])
    assert asked.value(decay) == "[0.01, 0.01]"


def test_the_gradient_norm_is_kept_under_a_limit_until_it_is_switched_off(asked: AskedRun) -> None:
    norm = "torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()])).item() < 1.0001e-3"
    asked.change("set", text="clip=0.001")
    assert asked.value("1") == "1"
    assert asked.value(norm) == "True"
    asked.change("set", text="clip=off")
    wait_until(lambda: asked.value(norm) == "False")


def test_what_cannot_be_set_is_refused_in_words_with_exit_code_2(asked: AskedRun) -> None:
    done = asked.type("set", "momentumm=0.9")
    assert done.returncode == 2
    assert "no setting momentumm; it has lr, eps, weight_decay, clip" in done.stderr
    assert "is not a setting" in change(asked.run, {"do": "set", "text": "lr"})[0].answer["error"]
    assert "no group 7" in change(asked.run, {"do": "set", "text": "lr[7]=1"})[0].answer["error"]
    assert "cannot be undone" in change(asked.run, {"do": "undo", "change": 1})[0].answer["error"]


def test_a_save_is_whole_and_a_file_is_refused_with_the_way_to_get_one(asked: AskedRun, tmp_path: Path) -> None:
    done = asked.type("save")
    assert done.returncode == 0, done.stderr
    assert "verified: clean" in done.stderr
    assert verify_checkpoint(Path(done.stdout.strip()))["made_by"] == "save"
    refused = asked.type("save", str(tmp_path / "state.pt"))
    assert refused.returncode == 2 and "is a folder, not a file" in refused.stderr
    code = re.search(r"holdfast eval '(.*)'", refused.stderr)
    assert code is not None and asked.value(code[1]) is None
    assert "0.weight" in torch.load(tmp_path / "state.pt", weights_only=True)


def test_a_rollback_by_hand_restores_the_weights_and_the_optimizer_and_the_journal_tells_who_asked(asked: AskedRun) -> None:
    weights = "sum(p.double().sum().item() for p in model.parameters()), optimizer.state[next(model.parameters())]['step'].item()"
    asked.change("pause")
    try:
        saved, before = asked.change("save").answer, asked.value(weights)
        asked.change("continue")
        wait_until(lambda: asked.eval("1")["step"] > saved["step"] + 20)
        lowered = asked.change("set", text="lr*=0.5").answer
        asked.change("pause")
        rates = asked.value(LR)
        assert asked.value(weights) != before
        done = asked.type("rollback", "--to", str(saved["step"]))
        assert done.returncode == 0 and f"restored the state of step {saved['step']}" in done.stdout, done.stderr
        assert asked.value(weights) == before and asked.value(LR) == rates  # what was set stays, and counts once
    finally:
        asked.change("continue")
    asked.change("undo", change=lowered["number"])
    (row,) = (row for row in asked.journal() if row.get("do") == "rollback")
    assert row["who"].startswith(getpass.getuser()) and row["to"] == saved["step"] < row["step"] and row["path"] == saved["path"]
    assert read_state(asked.run).roll_backs == 1
    assert f"rolled back to step {saved['step']}" in asked.type("journal", "--kind", "change").stdout
    refused = asked.type("rollback", "--to", "no-such-checkpoint")
    assert refused.returncode == 2 and "holdfast checkpoints list" in refused.stderr
    assert "cannot be undone" in change(asked.run, {"do": "undo", "change": row["number"]})[0].answer["error"]


def test_a_paused_training_still_answers_and_the_pause_is_not_the_time_of_a_step(asked: AskedRun) -> None:
    paused = asked.change("pause").answer
    try:
        (recording,) = listening(asked.run)
        pulse = read_pulse(recording)
        assert pulse is not None and pulse.phase == "paused"
        time.sleep(1.2)
        assert read_state(asked.run).ranks[0].health == "paused"
        assert asked.eval("speed")["step"] == paused["step"]
        assert asked.value("speed", now=True) is not None
        lowered = asked.change("set", text="lr*=0.5").answer
    finally:
        asked.change("continue")
    wait_until(lambda: asked.eval("1")["step"] > paused["step"] + 20)
    asked.change("undo", change=lowered["number"])
    rows = last_rows(asked.path / "rank-0", "steps", ("step", "step_seconds"), 400)
    assert float(rows["step_seconds"][rows["step"] == paused["step"]][0]) < 0.9
    assert change(asked.run, {"do": "continue"})[0].answer["error"] == "it was not paused"


def test_a_pause_can_be_undone_and_can_end_by_itself(asked: AskedRun) -> None:
    number = asked.change("pause").answer["number"]
    asked.change("undo", change=number)
    step = asked.change("pause", **{"for": 0.2}).answer["step"]
    wait_until(lambda: asked.eval("1")["step"] > step)


def test_the_journal_tells_who_did_what(asked: AskedRun) -> None:
    asked.value("speed + 1000")
    number = asked.change("set", text="weight_decay=0.02").answer["number"]
    asked.change("undo", change=number)
    rows = [row for row in asked.journal() if row["kind"] in ("change", "eval")]
    assert all(
        ("@" in row["who"] or "uid 0" in row["who"]) and "pid" in row["who"] and row["rank"] == 0 and row["number"] > 0
        for row in rows
    )
    assert len({row["number"] for row in rows}) == len(rows)
    (made,) = (row for row in rows if row["number"] == number)
    assert (made["what"], made["from"], made["to"], made["do"]) == ("weight_decay = 0.02", 0.01, 0.02, "set")
    told = asked.type("journal", "--last", "3").stdout
    assert "ran `speed + 1000`, by " in told
    assert f"weight_decay 0.01 → 0.02, by {made['who'].partition(' pid')[0]} (no. {number})" in told
    assert f"undid no. {number}: weight_decay 0.02 → 0.01" in told


def test_a_session_runs_line_by_line(asked: AskedRun) -> None:
    done = asked.type("repl", stdin="1 + 1\nfor i in range(2):\n    print(i)\n\nundefined\nspeed > 0\nexit\n99\n")
    assert done.stdout.splitlines() == ["2", "0", "1", "True"]
    assert "NameError" in done.stderr
    (recording,) = listening(asked.run)
    names = ask(recording, {"do": "complete", "text": "optimizer.param_g"}, seconds=5)["names"]
    assert names == ["optimizer.param_groups"]
    assert "train_loader" in ask(recording, {"do": "complete", "text": "train_"}, seconds=5)["names"]


# Who may ask


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_another_user_is_refused_by_the_file_and_by_the_process(asked: AskedRun, tmp_path: Path) -> None:
    socket = asked.path / "rank-0" / "control"
    assert socket.stat().st_mode & 0o777 == 0o600
    code = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/proc/self/fd/{}/control'); print(s.recv(9999).decode())"

    def as_another() -> subprocess.CompletedProcess[str]:
        folder = os.open(socket.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            words = ["/usr/bin/python3", "-c", code.format(folder)]
            return subprocess.run(
                words, pass_fds=[folder], user=65534, group=65534, capture_output=True, text=True, check=False, cwd="/"
            )
        finally:
            os.close(folder)

    assert "PermissionError" in as_another().stderr
    modes = [(path, path.stat().st_mode) for path in (socket.parent, socket)]
    try:
        socket.parent.chmod(0o755)
        socket.chmod(0o666)
        assert "belongs to another user" in as_another().stdout
    finally:
        for path, mode in modes:
            path.chmod(mode)


def test_a_worker_of_the_loader_has_no_control_socket(asked: AskedRun) -> None:
    worker = asked.value('[p.pid for p in __import__("multiprocessing").active_children()][0]')
    inodes = {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith("rank-0/control")}
    held = {str(fd.readlink()) for fd in Path(f"/proc/{worker}/fd").iterdir()}
    assert inodes
    assert not held & {f"socket:[{one}]" for one in inodes}


def test_zz_after_the_process_is_killed_the_socket_that_stays_is_harmless(asked: AskedRun) -> None:
    (recording,) = listening(asked.run)
    os.kill(recording.info()["pid"], 9)
    wait_until(lambda: not listening(asked.run))
    assert (recording.path / "control").is_socket()
    with pytest.raises(ControlUnreachable, match="has ended"):
        ask(recording, {"do": "where"}, seconds=2)
    done = asked.type("eval", "1")
    assert done.returncode == 2 and "has ended" in done.stderr
    assert np.isfinite(last_rows(recording.path, "steps", ("loss",), 3)["loss"]).all()
