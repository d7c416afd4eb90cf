"""Collectives that the script itself calls: which, how much, how long the caller was held."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.process import Process
from holdfast.inside.shield import Shield
from holdfast.inside.taps.registry import COLLECTIVES, Taps
from holdfast.signals.pulse import COLLECTIVE

_ROWS_A_STEP = 100
BACKWARD = "backward"  # under DDP and FSDP the ranks wait for each other in there


def watch_collectives(taps: Taps, process: Process, shield: Shield, told: Callable[[Callable[..., Any]], None]) -> None:
    """Wrap the collectives that a script calls, once there are several ranks; then `told` gets what records a wait."""
    if not torch.distributed.is_available():
        return
    watched = False

    def watch() -> None:
        nonlocal watched
        if not watched:
            watched = True
            record = shield(_Log(process).record)
            for name in COLLECTIVES:
                taps.wrap(f"torch.distributed.{name}", partial(_timed, name, record))
            told(record)

    watch_if_several = shield(lambda: watch() if torch.distributed.get_world_size() > 1 else None)

    def begins(original: Callable[..., Any]) -> Callable[..., Any]:
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            watch_if_several()
            return result

        return init_process_group

    taps.wrap("torch.distributed.init_process_group", begins)
    if os.environ.get("WORLD_SIZE", "1") != "1":  # before the script imports them by name
        watch()


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
        begun, before = time.perf_counter(), HEARTBEAT.enter(COLLECTIVE)
        try:
            return original(*args, **kwargs)
        finally:
            HEARTBEAT.leave(before)
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
