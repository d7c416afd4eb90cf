"""`holdfast doctor`: a line a check, evidence and fix under a bad one, commands alone with --fix."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.signals.run_folder import RunFolder

Holdfast = Callable[..., Any]
LIGHT = ("limits", "shared-memory", "memory", "disk-space", "clock", "mlflow", "wandb", "slurm", "packages")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("MLFLOW_", "WANDB_", "SLURM_")):
            monkeypatch.delenv(name)


def only(*names: str) -> list[str]:
    return [word for name in names for word in ("--only", name)]


def test_each_check_has_a_line_of_at_most_100_columns(holdfast: Holdfast) -> None:
    done = holdfast("doctor", *only(*LIGHT))
    first = [line.split()[1] for line in done.out.splitlines() if line and not line.startswith(" ")]
    assert set(first) == set(LIGHT) and max(map(len, done.out.splitlines())) <= 100
    assert not any(line != line.rstrip() for line in done.out.splitlines())


def test_a_problem_has_its_evidence_and_fix_below_and_the_exit_code_1(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter22@127.0.0.1:1")
    done = holdfast("doctor", "--only", "mlflow")
    assert done.code == 1 and done.out.startswith(
        "problem  mlflow         the MLflow server http://127.0.0.1:1 cannot be reached"
    )
    assert not any(line != line.rstrip() for line in done.out.splitlines())
    assert "uri http://127.0.0.1:1" in done.out and "fix: start it" in done.out and "mlflow server --port 5000" in done.out
    assert "1 problem" in done.err and "hunter22" not in done.out + done.err


def test_fix_prints_the_commands_alone_on_stdout_and_runs_none(
    holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "short")
    done = holdfast("doctor", "--fix", *only("wandb", "clock"))
    assert done.out.splitlines() == ["wandb login"] and done.code == 0
    assert "# wandb: the key has 5 characters" in done.err and not list(here.iterdir())


def test_nothing_to_mend_prints_no_command(holdfast: Holdfast) -> None:
    done = holdfast("doctor", "--fix", "--only", "clock")
    assert done.out == "" and "nothing to fix" in done.err and done.code == 0


def test_json_has_verdict_evidence_fixes_and_seconds(holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    done = holdfast("doctor", "--json", *only("clock", "wandb"))
    told = json.loads(done.out)
    assert (told["problems"], told["warnings"]) == (0, 0) and [row["check"] for row in told["checks"]] == ["clock", "wandb"]
    assert told["checks"][1]["verdict"] == "note" and told["checks"][1]["fixes"][0]["commands"]
    assert set(told["checks"][0]) == {"check", "verdict", "message", "evidence", "fixes", "seconds"}


def test_a_report_can_be_pasted_without_keys_and_names(holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "0123456789abcdef0123456789abcdef01234567"
    monkeypatch.setenv("WANDB_API_KEY", key)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:1")
    done = holdfast("doctor", "--report", "--only", "wandb")
    assert key not in done.out and "WANDB_API_KEY=<hidden>" in done.out
    assert "warning  wandb" in done.out and "torch 2." in done.out and done.code == 0


def test_plans_for_the_loader_are_judged(holdfast: Holdfast) -> None:
    done = holdfast("doctor", "--only", "shared-memory", "--workers", "64", "--batch-mb", "1000000")
    assert done.code == 1 and "needed for 64 workers" in " ".join(done.out.split())


def test_an_unknown_check_names_the_nearest(holdfast: Holdfast) -> None:
    done = holdfast("doctor", "--only", "disk-spac")
    assert done.code == 2 and "holdfast doctor --only disk-space" in done.err


def test_a_name_that_is_no_factory_is_refused(holdfast: Holdfast) -> None:
    done = holdfast("doctor", "--compile", "train.py")
    assert done.code == 2 and "does not name a factory" in done.err and done.out == ""


def test_asking_for_light_checks_does_not_import_torch(command: list[str]) -> None:
    code = "import sys; from holdfast.cli.app import app; app(['doctor', '--only', 'limits', '--json'], standalone_mode=False)"
    after = f"{code}\n"
    done = subprocess.run([command[0], "-X", "importtime", "-c", after], capture_output=True, text=True, check=False, timeout=600)
    assert not [line for line in done.stderr.splitlines() if line.split("|")[-1].strip() == "torch"]


@pytest.mark.slow
def test_all_checks_together_find_no_problem_on_a_healthy_machine(holdfast: Holdfast) -> None:
    told = json.loads(holdfast("doctor", "--json").out)
    wrong = [row for row in told["checks"] if row["verdict"] == "problem" and row["check"] != "shared-memory"]
    assert not wrong and not [row for row in told["checks"] if "the check itself failed" in row["message"]]


def test_ctrl_c_ends_the_processes_that_checks_have_started(command: list[str]) -> None:
    process = subprocess.Popen(
        [*command, "doctor", "--only", "all-reduce"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    until = time.monotonic() + 600
    children: list[psutil.Process] = []
    while not children and time.monotonic() < until:
        children = psutil.Process(process.pid).children()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=600)
    _, alive = psutil.wait_procs(children, timeout=600)
    assert children and not alive and process.returncode == 130


def test_modes_are_shown_side_by_side_with_the_one_for_each_number_of_steps(capsys: pytest.CaptureFixture[str]) -> None:
    from holdfast.cli.doctor_compile import show
    from holdfast.environment.compile_modes import Measured

    eager = Measured(mode="eager", step_seconds=0.01, device="cpu", peak_bytes=1 << 29)
    default = Measured(mode="default", step_seconds=0.008, compile_seconds=20, graph_breaks=2, break_reasons=("print",))
    show([eager, default, Measured(mode="max-autotune", failed="not finished in 600 s (last stage: warm)")])
    out = capsys.readouterr().out
    assert "10,001 steps" in out and "× 1.25" in out and "the first: print" in out
    assert "max-autotune: not finished in 600 s" in out
    assert "up to 10,001 steps                 eager" in out and "10,001 steps and more              default" in out
    assert max(map(len, out.splitlines())) <= 100


def test_compile_modes_are_explained(holdfast: Holdfast) -> None:
    done = holdfast("explain", "compile-modes")
    assert done.code == 0 and done.out.startswith("compile-modes: ")
    for words in ("reduce-overhead", "max-autotune", "holdfast doctor --compile"):
        assert words in done.out
    assert max(len(line.rstrip()) for line in done.out.splitlines()) <= 100
    told = json.loads(holdfast("explain", "compile-modes", "--json").out)
    assert told["topic"] == "compile-modes" and "max-autotune" in told["page"]


def test_topics_are_listed_and_the_nearest_is_named(holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    assert "compile-modes" in holdfast("explain").out
    assert "holdfast explain compile-modes" in holdfast("explain", "compile-mode").err


def test_how_a_script_resumes_is_told_with_the_command_that_confirms_it(holdfast: Holdfast, here: Path) -> None:
    (here / "train.py").write_text('import argparse\nargparse.ArgumentParser().add_argument("--resume")\n')
    words = ("doctor", "--only", "resuming", "--", "python", "train.py", "--lr", "0.1")
    done = holdfast(*words)
    assert done.code == 0 and done.out.startswith("note     resuming       train.py resumes with `--resume {checkpoint}`;")
    assert "holdfast run --policy heal --resume-args '--resume {checkpoint}' -- python train.py --lr 0.1\n" in done.out
    confirmed = {"command": ["python", "train.py"], "cwd": str(here), "resume_args": "--resume {checkpoint}"}
    RunFolder.create(here / "runs", "a", **confirmed)
    again = holdfast(*words)
    assert again.out.startswith("ok       resuming       train.py resumes with `--resume {checkpoint}`, as confirmed;")
    (here / "train.py").write_text("print(1)\n")
    RunFolder.create(here / "runs", "b", **{**confirmed, "started": 1.0, "resume_args": ""})
    assert "train.py has no known resume flag" in holdfast(*words).out
    (here / "train.py").unlink()
    gone = holdfast(*words)
    assert gone.code == 1 and "there is no file train.py" in gone.out


def test_how_a_script_resumes_is_not_asked_without_a_script(holdfast: Holdfast) -> None:
    done = holdfast("doctor", "--only", "resuming")
    assert done.code == 2 and "holdfast doctor --only resuming -- python train.py" in done.err
