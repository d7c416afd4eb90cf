"""What the tests here share: a terminal, and a small disk."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from holdfast_run import Sit, Terminal

if TYPE_CHECKING:
    from warm_command import WarmCommand
    from watched_training import Trainings, WarmPython


@pytest.fixture
def sit(tmp_path: Path) -> Iterator[Sit]:
    """Sit down at a terminal."""
    terminals: list[Terminal] = []

    def open_one(words: list[str], **how: object) -> Terminal:
        terminals.append(Terminal(words, tmp_path, **how))
        return terminals[-1]

    yield open_one
    for terminal in terminals:
        terminal.close()


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a small file system of its own, or change how it is mounted."""
    point = tmp_path / "disk"
    point.mkdir()

    def mount_with(options: str) -> Path:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
        return point

    yield mount_with
    subprocess.run(["umount", "-l", str(point)], capture_output=True, check=False)


@pytest.fixture(scope="session")
def warm(trainings: Trainings) -> WarmPython:
    """A Python that has imported torch already, one for all tests."""
    return trainings.warm


@pytest.fixture(scope="session")
def warm_command(warm: WarmPython) -> Iterator[WarmCommand]:
    """A command whose script runs in that Python."""
    from warm_command import WarmCommand

    command = WarmCommand(warm)
    yield command
    command.close()
