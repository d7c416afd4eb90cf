"""Collectives that the script itself calls: which, how much, how long the caller was held."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from holdfast.inside.patches import Patches
from holdfast.inside.process import Process
from holdfast.inside.pulse import PULSE
from holdfast.inside.shield import Shield
from holdfast.signals.pulse import COLLECTIVE

_OPERATIONS = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)
_ROWS_A_STEP = 100
BACKWARD = "backward"  # under DDP and FSDP the ranks wait for each other in there


def watch_collectives(patches: Patches, process: Process, shield: Shield) -> Callable[..., Any] | None:
    """Wrap the functions of `torch.distributed` that a script calls. What writes down how long something held the caller; None
    where there is one rank only."""
    if not torch.distributed.is_available():
        return None
    record = shield(_Log(process).record)
    for name in _OPERATIONS:
        patches.replace(torch.distributed, name, partial(_timed, name, record))
    return record if os.environ.get("WORLD_SIZE", "1") != "1" else None


class _Log:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._step, self._rows = -1, 0

    def record(self, operation: str, tensors: Any, seconds: float) -> None:
        trainings = self._process.trainings
        if not trainings:
            return
        training = trainings[-1]
        if training.step != self._step:
            self._step, self._rows = training.step, 0
        self._rows += 1
        if self._rows <= _ROWS_A_STEP:
            recorder = training.recorder
            row = (training.step, recorder.strings.code(operation), _bytes(tensors), seconds, time.time())
            recorder.table("collectives").append(row)


def _timed(name: str, record: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    def collective(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or threading.current_thread().name.startswith("holdfast-"):  # ranks that save together
            return original(*args, **kwargs)
        begun, before = time.perf_counter(), PULSE.enter(COLLECTIVE)
        try:
            return original(*args, **kwargs)
        finally:
            PULSE.leave(before)
            record(name, (*args, *kwargs.values()), time.perf_counter() - begun)

    return collective


def _bytes(values: Any) -> int:
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, (list, tuple)):
            total += sum(v.numel() * v.element_size() for v in value if isinstance(v, torch.Tensor))
    return total
