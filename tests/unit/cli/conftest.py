from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.signals import registry
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES


@dataclass
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str


@pytest.fixture(autouse=True)
def here(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, and no live runs but the test's own."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("runtime")))
    monkeypatch.delenv("HOLDFAST_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def built_once() -> Callable[[Any], Any]:
    """Typer's commands of an app: it builds all of them anew at each call, which takes longer than most commands."""
    from typer.main import get_command

    return functools.cache(get_command)


@pytest.fixture
def holdfast(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, built_once: Callable[[Any], Any]
) -> Callable[..., Done]:
    """Run a command in this process, as its entry point does."""
    import typer.main

    from holdfast.cli.main import main

    monkeypatch.setattr(typer.main, "get_command", built_once)

    def call(*words: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["holdfast", *words])
        capsys.readouterr()
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return Done(int(code), out, err)

    return call


@pytest.fixture
def training() -> Iterator[Callable[..., Recorder]]:
    """Record steps of 0.1 s, the last one ending now, in `runs/<name>`."""
    made: list[Recorder] = []

    def train(name: str = "digits", *, rank: int = 0, steps: int = 30, live: bool = True, **values: Any) -> Recorder:
        known = next((one.run for one in made if one.run.name == name), None)
        run = known or RunFolder.create(Path("runs"), name, pid=os.getpid(), started=time.time(), command=["python", "train.py"])
        made.append(Recorder.start(run, rank))
        now = time.time()
        for step in range(steps):
            given = {"step": step, "time": now - 0.1 * (steps - 1 - step), "loss": 1 / (step + 1), "step_seconds": 0.1}
            given |= {"data_seconds": 0.03, "holdfast_seconds": 0.0004, "lr": 0.01, "grad_norm": 2.0, "host_rss": 10**9} | values
            made[-1].table("steps").append([given.get(c.name, c.kind.missing) for c in TABLES["steps"].columns])
        if live:
            registry.register(run, os.getpid())
        else:
            made[-1].close()
            run.update_info(ended=time.time(), exit_code=0)
        return made[-1]

    yield train
    for one in made:
        one.close()


@pytest.fixture
def command() -> list[str]:
    """The command as another process: for what ends the process, or needs a terminal."""
    return [sys.executable, "-m", "holdfast.cli.main"]


@pytest.fixture
def in_terminal(command: list[str]) -> Callable[..., str]:
    """Run a command in a terminal, and give back all it wrote there."""
    import fcntl
    import pty
    import struct
    import termios

    def call(
        *words: str,
        when: Sequence[tuple[Callable[[str], bool], Callable[[], None]]] = (),
        timeout: float = 600.0,
        width: int = 100,
    ) -> str:
        """`when`: one after the other, what to do as soon as this is on the screen."""
        waiting = list(when)
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(width)}
        process = subprocess.Popen([*command, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        written, until = b"", time.monotonic() + timeout
        while time.monotonic() < until:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end was closed
                break
            if not part:
                break
            written += part
            while waiting and waiting[0][0](written.decode(errors="replace")):
                waiting.pop(0)[1]()
        os.close(ours)
        assert process.wait(600) == 0, written.decode()
        assert not waiting, written.decode()
        return written.decode()

    return call
