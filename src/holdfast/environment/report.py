"""The results of all checks: as rows for JSON, as commands that fix problems, and as a plain text to paste without secrets."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.environment.check import OK, PROBLEM, SKIPPED, WARNING, Verdict
from holdfast.environment.examine import Answer
from holdfast.environment.masking import mask, secret
from holdfast.environment.packages import installed, of_training
from holdfast.version import __version__

_VARIABLES = (
    "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "OMP_", "MKL_", "SLURM_JOB", "SLURM_CPUS", "SLURM_NTASKS",
    "MLFLOW_", "WANDB_", "HF_", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "HOLDFAST_", "MASTER_", "WORLD_SIZE", "RANK",
)  # fmt: skip


def as_rows(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """One row for each check."""
    return [
        {
            "check": answer.check.name,
            "verdict": answer.verdict.level,
            "message": answer.verdict.message,
            "evidence": dict(answer.verdict.evidence),
            "fixes": [{"text": fix.text, "commands": list(fix.commands)} for fix in answer.verdict.fixes],
            "seconds": round(answer.seconds, 3),
        }
        for answer in answers
    ]


def failed_checks(answers: Iterable[Answer]) -> list[Answer]:
    """Problems first, then warnings."""
    wrong = [answer for answer in answers if answer.verdict.level in (PROBLEM, WARNING)]
    return sorted(wrong, key=lambda check: check.verdict.level != PROBLEM)


def count(answers: Iterable[Answer], level: str) -> int:
    """How many checks came out so."""
    return sum(answer.verdict.level == level for answer in answers)


def text_report(answers: Sequence[Answer], environment: Mapping[str, str] = os.environ) -> str:
    """All of it as plain text, masked."""
    lines = [
        f"holdfast {__version__} doctor, {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}",
        f"{platform.platform()}, Python {platform.python_version()}",
        "packages: " + ", ".join(f"{name} {version}" for name, version in of_training(installed()).items()),
        *_variables(environment),
        "",
    ]
    for answer in answers:
        lines += [f"{answer.verdict.level:<8} {answer.check.name:<14} {answer.verdict.message}", *_below(answer.verdict)]
    return mask("\n".join(lines) + "\n", environment)


def _variables(environment: Mapping[str, str]) -> list[str]:
    """Variables that decide about a training; of those that may be secret only that they are set."""
    variables = {name: value for name, value in environment.items() if name.startswith(_VARIABLES)}
    return [f"{name}={'<hidden>' if secret(name) else value}" for name, value in sorted(variables.items())]


def _below(verdict: Verdict) -> list[str]:
    """The evidence, of everything that is not simply in order."""
    if verdict.level in (OK, SKIPPED):
        return []
    evidence = [f"           {name}: {value}" for name, value in verdict.evidence.items() if value not in (None, [], {})]
    fixes = [f"           fix: {fix.text}{' | ' if fix.commands else ''}{' ; '.join(fix.commands)}" for fix in verdict.fixes]
    return [*evidence, *fixes]
