"""Time the collectives that a script calls: which one, how many bytes, how long the caller waited."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch

from holdfast.inside.observers.heartbeat import HEARTBEAT
from holdfast.inside.process import Process
from holdfast.inside.shield import Shield
from holdfast.inside.taps.registry import COLLECTIVES, Taps
from holdfast.signals.pulse import COLLECTIVE

_MAX_ROWS_PER_STEP = 100
BACKWARD = "backward"  # recorded too: under DDP and FSDP the ranks wait for each other there


class Collectives:
    """Wraps the collectives as soon as there are several ranks, and writes their rows, at most 100 per step."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._step, self._rows = -1, 0
        self.record: Any = None  # once they are wrapped

    def install(self, taps: Taps, shield: Shield) -> None:
        """Wrap them now or when the process group is made."""
        if not torch.distributed.is_available():
            return
        self.record = None
        wrap_if_several = shield(lambda: self._wrap_all(taps, shield) if torch.distributed.get_world_size() > 1 else None)

        def wrap_init(original: Callable[..., Any]) -> Callable[..., Any]:
            def init_process_group(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                wrap_if_several()
                return result

            return init_process_group

        taps.wrap("torch.distributed.init_process_group", wrap_init)
        if os.environ.get("WORLD_SIZE", "1") != "1":  # before the script imports them by name
            self._wrap_all(taps, shield)

    def _wrap_all(self, taps: Taps, shield: Shield) -> None:
        if self.record is None:
            self.record = shield(self._record)
            for name in COLLECTIVES:
                taps.wrap(f"torch.distributed.{name}", partial(self._timed, name))

    def _timed(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def collective(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or threading.current_thread().name.startswith("holdfast-"):  # our own saves
                return original(*args, **kwargs)
            start, outer_phase = time.perf_counter(), HEARTBEAT.enter(COLLECTIVE)
            try:
                return original(*args, **kwargs)
            finally:
                HEARTBEAT.leave(outer_phase)
                self.record(name, (*args, *kwargs.values()), time.perf_counter() - start)

        return collective

    def _record(self, operation: str, values: Iterable[Any], seconds: float) -> None:
        trainings = self._process.trainings
        if not trainings:
            return
        training = trainings[-1]
        if training.step != self._step:
            self._step, self._rows = training.step, 0
        self._rows += 1
        recorder = training.recorder
        if self._rows <= _MAX_ROWS_PER_STEP and (recorder.thinning is None or recorder.thinning.keeps(training.step)):
            row = (training.step, recorder.strings.code(operation), _num_bytes(values), seconds, time.time())
            recorder.table("collectives").append(row)


def _num_bytes(values: Iterable[Any]) -> int:
    lists = (value if isinstance(value, (list, tuple)) else (value,) for value in values)
    tensors = (part for parts in lists for part in parts if isinstance(part, torch.Tensor))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)  # `nbytes` raises for a sparse tensor
