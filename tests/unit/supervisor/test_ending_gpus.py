"""A training is started again only when the GPU has let go of the one before: it would run out of memory at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stand_in import compile_library

WAIT = """
import os, sys, threading, time
from pathlib import Path
from holdfast.supervisor.ending import wait_for_gpus

answers, every, later = Path(os.environ["FAKE_NVML"]), float(sys.argv[1]), sys.argv[2:]

def change():
    for content in later:
        time.sleep(every)
        other = answers.with_suffix(".new")
        other.write_text(content)
        other.replace(answers)

threading.Thread(target=change, daemon=True).start()
print(wait_for_gpus({77}))
"""
CARD = "card 9 0 81920 {} 0 0 NVIDIA H100\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_library("fake_nvml.c", tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1").parent


def waited(library: Path, folder: Path, first: str, *later: str, every: float = 0.8) -> float:
    answers = folder / "answers"
    answers.write_text(first)
    more = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(answers), "FAKE_NVML_AGAIN": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WAIT, str(every), *later],
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return float(done.stdout)


def test_a_process_that_the_driver_still_lists_is_waited_for(library: Path, tmp_path: Path) -> None:
    busy = CARD.format(60000) + "process 0 77 60000\n"
    assert 1.4 < waited(library, tmp_path, busy, busy, CARD.format(500)) < 20


def test_in_a_container_the_memory_that_falls_is_waited_for(library: Path, tmp_path: Path) -> None:
    falling = [CARD.format(used) + "process 0 4242 1\n" for used in range(60000, 0, -5000)]
    assert 1.0 < waited(library, tmp_path, *falling, every=0.15) < 20


def test_a_card_that_is_free_is_not_waited_for(library: Path, tmp_path: Path) -> None:
    assert waited(library, tmp_path, CARD.format(500)) < 10


def test_without_a_driver_there_is_nothing_to_wait_for(tmp_path: Path) -> None:
    script = "from holdfast.supervisor.ending import wait_for_gpus; print(wait_for_gpus({77}))"
    hidden = {**os.environ, "LD_LIBRARY_PATH": "", "FAKE_NVML": ""}
    done = subprocess.run([sys.executable, "-c", script], env=hidden, capture_output=True, text=True, check=True)
    if done.stdout.strip() != "None":
        pytest.skip("this machine has an NVIDIA driver")
