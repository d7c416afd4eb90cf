"""What torch reports about itself and the devices it sees; read in a child process, where a broken install can crash."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from holdfast.environment.child import DONE, TIMED_OUT, run_child


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchFacts:
    """Versions, the kernels it was built with, and whether a first kernel ran on each device.

    `error` is set if torch could not be imported or its child did not end by itself; `stage` is then the last thing that worked.
    """

    version: str = ""
    cuda: tuple[int, int] | None = None
    hip: str | None = None
    architectures: tuple[str, ...] = ()
    available: bool = False
    why_not: str = ""
    devices: tuple[dict[str, object], ...] = ()
    kernels: dict[str, str] = field(default_factory=dict)
    peers: dict[str, bool] = field(default_factory=dict)
    threads: int | None = None
    triton: str | None = None
    nccl: str | None = None
    mps: bool = False
    error: str | None = None
    stage: str = ""

    @property
    def build(self) -> str:
        """The build in words."""
        if self.cuda:
            return f"CUDA {self.cuda[0]}.{self.cuda[1]}"
        return f"ROCm {self.hip}" if self.hip else "CPU only"


def read_torch(seconds: float = 90.0) -> TorchFacts:
    """Import torch in a child and try each device."""
    ended = run_child("torch_report.py", seconds=seconds)
    facts = dict(ended.facts)
    cuda = facts.pop("cuda", None)
    error = facts.pop("error", None)
    if ended.how == TIMED_OUT:
        error = f"no answer in {seconds:.0f} s, after: {ended.stage or 'start'}"
    elif ended.how != DONE and error is None:
        error = f"{ended.last_output} (after: {ended.stage or 'start'})"
    return TorchFacts(
        cuda=_version(cuda),
        architectures=tuple(facts.pop("architectures", ())),
        devices=tuple(facts.pop("devices", ())),
        error=error,
        stage=ended.stage,
        **facts,
    )


def _version(text: str | None) -> tuple[int, int] | None:
    match = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None
