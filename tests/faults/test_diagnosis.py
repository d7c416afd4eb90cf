"""Faulty trainings under `holdfast run`: each fault is found, its cause comes first, and live and afterwards say the same."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import PYTHON, findings_of, run, typed

from holdfast.diagnosis.run_follower import findings_of as afterwards
from holdfast.signals.run_folder import RunFolder

ZOO = Path(__file__).parents[2] / "benchmarks/faulty_trainings"
sys.path.insert(0, str(ZOO))
from expected import EXPECTED  # noqa: E402

SLOW = [pytest.param(fault, marks=pytest.mark.slow) for fault in ("frozen", "rate-too-low", "other-head", "constant-input")]
QUICK = ("dead-relus", *SLOW)  # all of them: benchmarks/diagnose.py
_OF_RUNS = {"dead-units", "not-learning", "parameters-not-trained", "constant-predictions"}


@pytest.mark.parametrize("fault", QUICK)
def test_a_fault_is_found_and_its_cause_comes_first(fault: str, tmp_path: Path) -> None:
    words = ("--name", "it", "--", PYTHON, str(ZOO / "zoo.py"), fault)
    done = run(tmp_path, *words, env={"CUDA_VISIBLE_DEVICES": ""}, timeout=600)
    assert done.returncode == 0, done.stderr
    said = _diagnosed(tmp_path)
    wanted = EXPECTED[fault]
    assert {one["code"] for one in said["findings"]} & set(wanted.findings), said
    assert said["diagnoses"][0]["cause"] in wanted.causes, said["diagnoses"]
    _live_and_afterwards_agree(tmp_path / "runs/it")


def _diagnosed(folder: Path) -> dict[str, Any]:
    done = typed("diagnose", "--json", str(folder / "runs/it"), folder=folder)
    assert done.returncode == 1, done.stderr
    (found,) = json.loads(done.stdout)["runs"]
    result: dict[str, Any] = found
    return result


def _live_and_afterwards_agree(folder: Path) -> None:
    live = [
        (one["code"], one["step"], one["severity"], one["evidence"]) for one in findings_of(folder) if one["code"] in _OF_RUNS
    ]
    whole = [one.as_row() for one in afterwards(RunFolder.open(folder))]
    assert live == [(one["code"], one["step"], one["severity"], one["evidence"]) for one in whole if one["code"] in _OF_RUNS]
