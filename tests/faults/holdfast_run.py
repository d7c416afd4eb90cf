"""Start `holdfast run` as a user does: a real process, in a folder of its own, with a runtime folder of its own."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

HOLDFAST = (sys.executable, "-m", "holdfast.cli.main")
PYTHON = sys.executable
VICTIMS = Path(__file__).parents[1] / "victims"


def environment(folder: Path, **more: str) -> dict[str, str]:
    """This environment without what an outer `holdfast run` may have put there, and with one thread: other tests run beside."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HOLDFAST_") and key != "PYTHONPATH"}
    return {**kept, "OMP_NUM_THREADS": "1", "XDG_RUNTIME_DIR": str(folder), **more}


def run(folder: Path, *words: str, env: dict[str, str] | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
    """`holdfast run WORDS`, to its end."""
    how = {"capture_output": True, "timeout": 600, **how}
    return subprocess.run(
        [*HOLDFAST, "run", *words], cwd=folder, env=environment(folder, **(env or {})), text=True, check=False, **how
    )


def start(folder: Path, *words: str, env: dict[str, str] | None = None, **how: Any) -> subprocess.Popen[str]:
    """`holdfast run WORDS`, while it runs."""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **how}
    return subprocess.Popen([*HOLDFAST, "run", *words], cwd=folder, env=environment(folder, **(env or {})), text=True, **how)


class Done(NamedTuple):
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


def typed(*words: str, folder: Path | None = None, stdin: str = "", **more: str) -> Done:
    """`holdfast WORDS`, as its entry point does it, in this process: a second or more is saved each time.

    With a folder, in it and with its `environment`.
    """
    from holdfast.cli.main import main

    out, err, code = io.StringIO(), io.StringIO(), 0
    before = sys.argv, sys.stdin, dict(os.environ), Path.cwd()
    sys.argv, sys.stdin = ["holdfast", *words], io.StringIO(stdin)
    try:
        if folder is not None:
            os.chdir(folder)
            _become(environment(folder, **more))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv, sys.stdin = before[:2]
        _become(before[2])
        os.chdir(before[3])
    return Done(code, out.getvalue(), err.getvalue())


def _become(environment: dict[str, str]) -> None:
    for name in os.environ.keys() - environment:
        del os.environ[name]
    os.environ.update(environment)


def wait_until(true: Callable[[], bool], seconds: float = 600.0) -> None:
    """Wait for something to become true, and fail loudly if it does not."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def only_run(folder: Path) -> Path:
    """The folder of the one run that was started there."""
    (found,) = (path for path in (folder / "runs").iterdir() if not path.is_symlink())
    return found


def info_of(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "run.json").read_text())
    return content


def findings_of(run: Path) -> list[dict[str, Any]]:
    try:
        entries = [json.loads(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        return []
    return [entry for entry in entries if entry["kind"] == "finding"]


Sit = Callable[..., "Terminal"]  # the fixture of conftest.py


class Terminal:
    """A terminal that someone sits at: the process started in it has it as its controlling terminal."""

    def __init__(self, words: list[str], folder: Path, *, rows: int = 33, columns: int = 77, **redirected: Any) -> None:
        self.keyboard, slave = pty.openpty()
        fcntl.ioctl(self.keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        own = {"stdin": slave, "stdout": slave, "stderr": slave, **redirected}
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            env=environment(folder, TERM="dumb"),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            **own,
        )
        os.close(slave)
        self.seen = b""

    def type(self, keys: bytes) -> None:
        os.write(self.keyboard, keys)

    def until(self, text: bytes, seconds: float = 600.0) -> None:
        """Read the screen until `text` has appeared on it after what was waited for before."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < deadline, f"never saw {text!r} in {self.seen!r}"
            self._read(0.1)
        self.seen = self.seen.split(text, 1)[1]

    def rest(self) -> bytes:
        """Everything until the process ends."""
        while self._read(0.1) or self.process.poll() is None:
            pass
        return self.seen

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.keyboard)

    def _read(self, seconds: float) -> bool:
        if not select.select([self.keyboard], [], [], seconds)[0]:
            return False
        try:
            part = os.read(self.keyboard, 65536)
        except OSError:  # nobody holds the other side
            return False
        self.seen += part
        return bool(part)
