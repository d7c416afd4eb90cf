"""Before a run on a GPU: kernels that do not repeat themselves, and what it takes to bring batches there. `make test-gpu`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from holdfast_run import HOLDFAST, PYTHON, VICTIMS, environment

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


def asked(folder: Path, *words: str, at: Path | None = None) -> tuple[int, Any]:
    done = subprocess.run(
        [*HOLDFAST, *words], cwd=at or folder, env=environment(folder), text=True, capture_output=True, timeout=600, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_kernel_that_adds_in_another_order_is_named_as_the_reason(tmp_path: Path) -> None:
    script = str(VICTIMS / "adds_on_the_card.py")
    code, answer = asked(tmp_path, "repro", "--steps", "3", "--json", "--", PYTHON, script)
    assert code == 1 and answer["difference"]["stage"] in ("output", "loss", "gradient", "updated")
    assert [reason["code"] for reason in answer["reasons"]] == ["non-deterministic-kernel"]
    assert answer["remaining"] is None


def test_the_way_to_the_card_is_part_of_what_a_loader_costs(tmp_path: Path) -> None:
    words = ("validate", "slow_loaders:waits", "--benchmark", "--json", "--time-limit", "60")
    code, answer = asked(tmp_path, *words, at=VICTIMS)
    assert code == 0 and answer["failed"] is None
    assert answer["seconds_per_sample"]["transfer"] > 0
    assert {row["pin"] for row in answer["settings"]} == {False, True}, "both ways were tried"
