"""The process in which a loader is measured: makes it once, then does what it is asked for.

Whatever the user's code prints goes to a file, of which the end is told where the process dies.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from holdfast.errors import HoldfastError
from holdfast.loading.error_origin import of_error, sample_of
from holdfast.loading.phases import SampleFailed, measured_phases, move
from holdfast.loading.setting import Setting
from holdfast.loading.source import Batches, Source, card, opened, set_threads

# How many samples a second a loader gives with one setting, in this process and its workers.


class LoaderFailed(Exception):
    """A batch that did not come; `indices` are its samples, where those are known."""

    def __init__(self, error: BaseException, indices: list[Any]) -> None:
        super().__init__(str(error))
        self.error, self.indices = error, indices


def measured_rate(
    source: Source,
    setting: Setting,
    *,
    seconds: float,
    at_most: float,
    cut: int | None,
    device: str | None,
    full: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Draw batches for `seconds` once every worker has given one; never longer than `at_most` in all, as far as batches come.

    The consumer does nothing but move them to the card, so nothing is waiting in the queue when the clock starts. `full` is
    called at the end, when nobody draws any more and the workers fill their queue, as they do when the training is the slower.
    """
    threads = torch.get_num_threads()
    loader, batches = source.made_with(setting, cut)
    if not setting.workers:
        set_threads(setting.threads)
    begun = time.perf_counter()
    arrivals: list[tuple[float, int]] = []
    until, warm = begun + at_most, max(1, setting.workers)
    drawn = _drawn(loader)
    try:
        while time.perf_counter() < until:
            batch = _next(drawn, batches, len(arrivals))
            if device is not None:
                move(batch, device, non_blocking=setting.pin)
            arrivals.append((time.perf_counter(), source.count(batch, batches and batches.drawn[len(arrivals)])))
            if len(arrivals) == warm:
                until = min(until, time.perf_counter() + seconds)
        full()
    finally:
        drawn.close()
        set_threads(threads)
    return _summed(arrivals, begun, warm)


def free_memory() -> None:
    """Give back what the last setting left behind, or the next one would be measured in its place."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        if sys.platform == "linux":
            import ctypes

            ctypes.CDLL(None).malloc_trim(0)


def _summed(arrivals: list[tuple[float, int]], begun: float, warm: int) -> dict[str, Any]:
    """Samples a second between the last batch of the warm-up and the last of all; with few batches, from the first one on."""
    start = arrivals[0][0] - begun
    if len(arrivals) == 1:
        return {"rate": arrivals[0][1] / start, "start_seconds": start, "batches": 1}
    first = min(warm, len(arrivals) - 1) - 1
    counted = arrivals[first + 1 :]
    took = counted[-1][0] - arrivals[first][0]
    return {
        "rate": sum(count for _, count in counted) / max(took, 1e-9),
        "start_seconds": start,
        "batches": len(counted),
    }


def _drawn(loader: Any) -> Any:
    """Batches without end; an epoch without any is one."""
    while True:
        count = 0
        for batch in loader:
            count += 1
            yield batch
        if not count:
            return


def _next(drawn: Any, batches: Batches | None, place: int) -> Any:
    try:
        return next(drawn)
    except StopIteration:
        raise LoaderFailed(ValueError("the loader gives no batch"), []) from None
    except Exception as error:
        indices = batches.drawn[place] if batches is not None and place < len(batches.drawn) else []
        raise LoaderFailed(error, list(indices) if isinstance(indices, (list, tuple)) else [indices]) from error


_SOME = 4
_LOOK = 2.0  # seconds
_AT = 32  # bytes of the file that holds the index of the sample that is being loaded


def main(pipe: Connection, target: str, batch: int | None, errors: str, at: str) -> None:
    """Make the loader, and measure until there is nothing left to be asked."""
    os.setsid()
    multiprocessing.set_start_method(None, force=True)  # workers are started as in the user's own process
    for stream in (1, 2):
        os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND), stream)
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=False, chain=False)  # forked workers keep it: where do they stand?
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    sys.path.insert(0, str(Path.cwd()))
    try:
        source = opened(target, batch)
        pipe.send({"loader": source.described()})
    except HoldfastError as error:
        pipe.send({"problem": error.problem, "fix": error.fix})
        return
    with contextlib.suppress(EOFError):
        while True:
            pipe.send({**_done(source, pipe.recv(), at, pipe), "over": True})


def _end_with(parent: int) -> None:
    """Who measures may be killed while a worker hangs here: then all of this ends as well."""
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os.killpg(0, signal.SIGKILL)


def _done(source: Source, command: dict[str, Any], at: str, pipe: Connection) -> dict[str, Any]:
    try:
        return _phases(source, command, at) if command["do"] == "phases" else _rate(source, command, pipe)
    except SampleFailed as failed:
        return {"failed": of_error(failed.error), "sample": str(failed.index)}
    except LoaderFailed as failed:
        return _failure_of(source, failed)
    except Exception as error:  # noqa: BLE001 - a collate_fn, a sampler or a transfer of the user's may raise anything
        return {"failed": of_error(error)}


def _phases(source: Source, command: dict[str, Any], at: str) -> dict[str, Any]:
    file = os.open(at, os.O_WRONLY)

    def write_index(index: Any) -> None:
        os.pwrite(file, str(index)[:_AT].ljust(_AT).encode("ascii", "replace"), 0)

    try:
        return {"phases": measured_phases(source, command["seconds"], write_index, device="cuda" if card() else None)}
    finally:
        os.close(file)


def _rate(source: Source, command: dict[str, Any], pipe: Connection) -> dict[str, Any]:
    def full() -> None:
        pipe.send({"full": True})
        pipe.recv()  # until the memory was looked at

    try:
        return measured_rate(
            source, command["setting"], seconds=command["seconds"], at_most=command["at_most"], cut=command["cut"],
            device="cuda" if card() else None, full=full,
        )  # fmt: skip
    finally:
        free_memory()


def _failure_of(source: Source, failed: LoaderFailed) -> dict[str, Any]:
    """Which sample it was: those of the batch are tried once more, here. A worker that was killed is not followed."""
    reason = of_error(failed.error)
    died = f"{failed.error} {failed.error.__cause__}"
    if "exited unexpectedly" in died or "killed by signal" in died:
        by = re.search(r"killed by signal: ([\w ]+)", died)
        return {"failed": f"a worker died{f' ({by[1].strip()})' if by else ''}", "died": True}
    failure = sample_of(source.dataset, failed.indices) if not source.stream else None
    if failure is not None:
        return {"failed": failure[1], "sample": str(failure[0])}
    some = ", ".join(str(index) for index in failed.indices[:_SOME]) + (", …" if len(failed.indices) > _SOME else "")
    return {"failed": reason + (f", in a worker only, for one of the samples {some}" if some else "")}
