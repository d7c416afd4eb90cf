"""`holdfast ui` as a process of its own: the link that it prints is the way in, and nothing of it stays behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from small_server import make_run

HOLDFAST = (sys.executable, "-m", "holdfast.cli.main")


def test_the_link_opens_the_finished_runs_of_this_folder(tmp_path: Path) -> None:
    make_run(tmp_path / "runs", "mine", ranks=1, steps=3)
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "DISPLAY": "", "WAYLAND_DISPLAY": ""}
    words = [*HOLDFAST, "ui", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    found = re.fullmatch(r"open (http://127\.0\.0\.1:\d+)/#token=(\S+)\n", process.stderr.readline())
    try:
        assert found
        request = urllib.request.Request(f"{found[1]}/api/runs", headers={"Authorization": f"Bearer {found[2]}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert [row["name"] for row in json.load(answer)["runs"]] == ["mine"]
        kept = [path for path in (runtime / "holdfast").iterdir() if path.suffix in (".token", ".html")]
        assert kept and all(path.stat().st_mode & 0o077 == 0 for path in kept)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(600) == 0
    assert not [path for path in (runtime / "holdfast").iterdir() if path.suffix in (".token", ".html")]


def test_what_cannot_be_shown_is_told_in_words(holdfast: Any, here: Path) -> None:
    for words in (("--listen", "0.0.0.0:0"), ("--listen", "nonsense"), ("-t", "no-such-run")):
        done = holdfast("ui", "--no-open", *words)
        assert done.code == 2 and done.err.startswith("error: ") and "  fix: " in done.err
