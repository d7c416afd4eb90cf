"""Command lines and folders whose bytes are no UTF-8: the command is started, and the run is recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import HOLDFAST, environment, wait_until

from holdfast.probe.sql import query
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor import host

CAFE = os.fsdecode(b"caf\xe9")

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="its file systems take UTF-8 only")


def test_a_word_of_the_command_that_is_no_text_reaches_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [*HOLDFAST, "run", "--name", "odd", "--", "echo", CAFE], cwd=tmp_path, env=environment(tmp_path), capture_output=True
    )
    assert (done.returncode, done.stdout) == (0, b"caf\xe9\n"), done.stderr
    info = RunFolder.open(tmp_path / "runs" / "odd").info()
    assert info["command"] == ["echo", "caf?"] and info["exit_code"] == 0


def test_a_working_folder_whose_name_is_no_text_is_used(tmp_path: Path) -> None:
    here = tmp_path / CAFE
    here.mkdir()
    done = subprocess.run([*HOLDFAST, "run", "--", "pwd"], cwd=here, env=environment(tmp_path), capture_output=True)
    assert (done.returncode, done.stdout) == (0, os.fsencode(here) + b"\n"), done.stderr
    assert RunFolder.open(here / "runs" / "latest").info()["cwd"] == str(tmp_path / "caf?")


def test_what_cannot_be_encoded_is_replaced_in_what_a_run_says_of_itself(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run", command=["python", CAFE], cwd=Path("/job") / CAFE)
    assert run.info()["command"] == ["python", "caf?"] and run.info()["cwd"] == "/job/caf?"
    run.update_info(note=CAFE)
    assert run.info()["note"] == "caf?"


def test_a_process_with_such_a_command_line_can_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_EVERY_SECONDS", 0.1)
    run = RunFolder.create(tmp_path, "run")
    run.claim(0)
    with subprocess.Popen([sys.executable, "-c", "input()", CAFE], stdin=subprocess.PIPE) as odd:
        sampler = host.HostSampler(run, os.getpid(), Trouble(run.journal))
        sampler.start()
        wait_until(lambda: (run.path / "host/processes/000000.seg").exists())
        wait_until(lambda: bool(_commands(run, odd.pid)))
        sampler.stop()
        odd.kill()
    assert _commands(run, odd.pid) == [f"{sys.executable} -c input() caf?"]


def _commands(run: RunFolder, pid: int) -> list[Any]:
    return [row[0] for row in query(run, f"SELECT DISTINCT command FROM processes WHERE pid = {pid}").rows]
