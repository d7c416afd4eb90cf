"""kill -9 at any moment of saving and deleting: a clean newest checkpoint is always there, and what was told to be saved is."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import typed

VICTIM = Path(__file__).parents[1] / "victims" / "killed_saver.py"


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    """A warm process whose children save, and are killed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started = subprocess.Popen([sys.executable, str(VICTIM)], text=True, env=environment, **pipes)
    yield started
    assert started.stdin is not None and started.stdout is not None
    started.stdin.close()
    assert started.wait(600) == 0
    started.stdout.close()


class Victim:
    """A store in a folder, that is saved to."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self._folder, self._process = folder, process
        print(json.dumps({"begin": str(folder)}), file=process.stdin, flush=True)

    def kill(self, **order: Any) -> dict[str, Any]:
        """Have a child killed; what is left in the folder."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the process that checks what is left has died"
        found: dict[str, Any] = json.loads(answer)
        assert found["newest"] is not None, f"after {order} no clean checkpoint is left"
        assert found["state"] == "clean" and found["right"] and not found["skipped"], (order, found)
        assert found["best"], f"after {order} the best one is gone"
        assert found["step"] >= found["told"], f"after {order} step {found['told']} is lost, which was told to be saved"
        return found

    def close(self) -> None:
        """Also ask the command line, as somebody would after a crash."""
        newest = self.kill(call=10**9, when="never", steps=1)["newest"]
        done = typed("checkpoints", "choose", "--json", str(self._folder))
        assert done.returncode == 0, done.stderr
        chosen = json.loads(done.stdout)
        clean = [one["path"] for one in chosen["rejected"] if one["state"] == "clean"]
        clean += [one["checkpoint"] for one in chosen["options"] if one["checkpoint"]]
        assert newest in {Path(path).name for path in clean}, "metrics are noise here: it may recommend an older one"


@pytest.fixture
def victim(process: subprocess.Popen[str]) -> Iterator[Victim]:
    """In memory where that can be had: what a killed process has written stays, and more saves go into a second."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        one = Victim(Path(folder) / "checkpoints", process)
        yield one
        one.close()


@pytest.mark.parametrize("count", [40, pytest.param(500, marks=pytest.mark.slow)])
def test_killed_at_random_moments_nothing_is_lost(victim: Victim, count: int) -> None:
    moments = random.Random(0)
    found = [victim.kill(save=moments.randint(1, 3), after=moments.uniform(0.0, 0.015)) for _ in range(count)]
    killed = [one for one in found if one["codes"] == [-signal.SIGKILL]]
    assert len(killed) == count
    assert len({one["step"] for one in found}) > count // 3, "a child in its third save has saved at least one"
    assert max(one["spares"] for one in found) > 0
    assert victim.kill(call=10**9, when="never", steps=1)["spares"] == 0, "what the dead left behind is cleared away"


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.slow)])
def test_killed_at_every_call_to_the_disk_nothing_is_lost(victim: Victim, when: str) -> None:
    victim.kill(call=10**9, when=when, steps=4)  # so that one has to go with each new one
    calls = 0
    while True:
        calls += 1
        found = victim.kill(call=calls, when=when, steps=1)
        assert found["codes"] in ([-signal.SIGKILL], [0]), found
        if found["ended"]:
            break
    assert calls > 25, "a save with its files, its name and the mark of the best, and an older one that goes"


@pytest.mark.slow
def test_killed_with_two_ranks_nothing_is_lost(victim: Victim) -> None:
    moments = random.Random(1)
    steps = set()
    for number in range(15):
        who = ([0, 1], [0], [1])[number % 3]
        found = victim.kill(ranks=2, save=1 + number % 4, after=moments.uniform(0.0, 0.03), who=who, then=0.05)
        steps.add(found["step"])
    assert len(steps) > 5
