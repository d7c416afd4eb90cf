"""HOLDFAST_LISTEN: a run can be asked from elsewhere while it lives, and is none the worse for it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import PYTHON, findings_of, run, start, wait_until

from holdfast.probe.cluster import find
from holdfast.probe.cluster_query import query_all

WAITS = "import sys, time\nprint('ready', flush=True)\nsys.stdin.readline()\nprint('done')"


def serve_file(folder: Path) -> dict[str, Any]:
    wait_until(lambda: (folder / "runs" / "live" / "serve.json").exists())
    wait_until(lambda: (folder / "runs" / "live" / "serve.json").read_text().endswith("\n"))
    content: dict[str, Any] = json.loads((folder / "runs" / "live" / "serve.json").read_text())
    return content


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z" if Path("/proc").exists() else True


def test_a_run_answers_while_it_lives_and_its_server_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    process = start(tmp_path, "--name", "live", "--", PYTHON, "-c", WAITS, env={"HOLDFAST_LISTEN": "127.0.0.1:0"}, stdin=-1)
    server = serve_file(tmp_path)
    assert query_all(find([server["address"]]), "SELECT DISTINCT run FROM processes").columns == ["run"]
    out, _ = process.communicate("\n")
    assert process.returncode == 0 and out == "ready\ndone\n"
    wait_until(lambda: not alive(server["pid"]))
    assert not (tmp_path / "runs" / "live" / "serve.json").exists()


def test_a_run_whose_supervisor_was_killed_still_answers_until_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    process = start(tmp_path, "--name", "live", "--", PYTHON, "-c", WAITS, env={"HOLDFAST_LISTEN": "127.0.0.1:0"}, stdin=-1)
    server = serve_file(tmp_path)
    process.kill()
    process.wait()
    assert find([server["address"]]).there
    assert process.stdin is not None
    process.stdin.close()  # the command reads the end of its input, and ends
    wait_until(lambda: not alive(server["pid"]))


@pytest.mark.parametrize(("listen", "words"), [("nonsense", "not an address"), ("0.0.0.0:0", "a token is required")])
def test_where_it_cannot_listen_the_run_goes_on_and_the_journal_says_why(tmp_path: Path, listen: str, words: str) -> None:
    wait = "import pathlib, time\nwhile not pathlib.Path('runs/live/journal.jsonl').exists(): time.sleep(0.05)\nprint('trained')"
    done = run(tmp_path, "--name", "live", "--", PYTHON, "-c", wait, env={"HOLDFAST_LISTEN": listen})
    assert done.returncode == 0 and done.stdout == "trained\n"
    (finding,) = findings_of(tmp_path / "runs" / "live")
    assert finding["code"] == "holdfast-degraded" and words in finding["evidence"]["error"]


def test_signals_to_the_run_do_not_reach_its_server_before_the_end(tmp_path: Path) -> None:
    process = start(tmp_path, "--name", "live", "--", PYTHON, "-c", WAITS, env={"HOLDFAST_LISTEN": "127.0.0.1:0"}, stdin=-1)
    server = serve_file(tmp_path)
    assert os.getsid(server["pid"]) == server["pid"] != os.getsid(process.pid)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    wait_until(lambda: not alive(server["pid"]))
