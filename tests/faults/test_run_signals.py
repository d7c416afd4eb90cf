"""A signal reaches the command once: typed at the terminal or sent to the supervisor."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

from holdfast_run import HOLDFAST, PYTHON, VICTIMS, Sit, environment, info_of, only_run, start, wait_until

VICTIM = str(VICTIMS / "counts_signals.py")


def test_a_signal_sent_to_the_supervisor_reaches_the_command_once(tmp_path: Path) -> None:
    with start(tmp_path, PYTHON, VICTIM) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGCONT"):
            process.send_signal(getattr(signal, name))
            assert process.stdout.readline() == f"[{name}]\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "[SIGTERM]\n"
    assert process.returncode == 7


def test_a_command_that_dies_of_the_forwarded_signal_gives_128_plus_its_number(tmp_path: Path) -> None:
    with start(tmp_path, "--name", "a", "sh", "-c", "echo ready; sleep 30") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert info_of(tmp_path / "runs/a")["exit_code"] == 143


def test_the_command_starts_with_no_signal_blocked_broken_pipes_deadly_and_hang_ups_ignored_if_they_were(tmp_path: Path) -> None:
    done = subprocess.run(
        ["nohup", *HOLDFAST, "run", "cat", "/proc/self/status"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    masks = dict(line.split(":\t") for line in done.stdout.splitlines() if line.startswith("Sig"))
    assert int(masks["SigBlk"], 16) == 0
    ignored = int(masks["SigIgn"], 16)
    assert not ignored & 1 << (signal.SIGPIPE - 1)
    assert ignored & 1 << (signal.SIGHUP - 1)


def test_ctrl_c_reaches_the_command_once(sit: Sit, tmp_path: Path) -> None:
    terminal = sit([*HOLDFAST, "run", PYTHON, VICTIM])
    terminal.until(b"ready")
    terminal.type(b"\x03")
    terminal.until(b"[SIGINT]")
    os.kill(terminal.process.pid, signal.SIGTERM)
    seen = terminal.rest()
    assert b"SIGINT" not in seen and b"[SIGTERM]" in seen
    assert terminal.process.wait() == 7
    assert info_of(only_run(tmp_path))["exit_code"] == 7


def test_ctrl_c_ends_an_ordinary_script_as_it_would_alone(sit: Sit) -> None:
    terminal = sit([*HOLDFAST, "run", PYTHON, "-c", "import time; print('ready'); time.sleep(30)"])
    terminal.until(b"ready")
    terminal.type(b"\x03")
    seen = terminal.rest()
    assert seen.count(b"KeyboardInterrupt") == 1 and b"holdfast" not in seen
    assert terminal.process.wait() == 130


def test_ctrl_z_stops_the_run_and_fg_takes_it_up_again(sit: Sit, tmp_path: Path) -> None:
    terminal = sit(["bash", "--norc", "--noprofile", "-i"])
    script = "import os, time\nwhile not os.path.exists('enough'): print('tick', flush=True); time.sleep(0.02)"
    terminal.type((shlex.join([*HOLDFAST, "run", PYTHON, "-c", script]) + "\n").encode())
    terminal.until(b"tick\r\ntick")
    terminal.type(b"\x1a")
    terminal.until(b"Stopped")
    terminal.type(b"fg\n")
    terminal.until(b"tick\r\ntick")
    (tmp_path / "enough").touch()
    terminal.type(b"echo code-$?\n")
    terminal.until(b"\ncode-0")


def test_closing_the_terminal_hangs_up_the_command(sit: Sit, tmp_path: Path) -> None:
    log = tmp_path / "said"
    with log.open("wb") as file:
        terminal = sit([*HOLDFAST, "run", PYTHON, VICTIM], stdout=file)
        terminal.until(b"holdfast: run")
        wait_until(lambda: b"ready" in log.read_bytes())
        os.close(terminal.keyboard)
        terminal.keyboard = os.open(os.devnull, os.O_RDONLY)
        wait_until(lambda: b"[SIGHUP]" in log.read_bytes())
        os.kill(terminal.process.pid, signal.SIGTERM)
        terminal.process.wait(600)
    assert log.read_bytes().count(b"[SIGHUP]") == 1
