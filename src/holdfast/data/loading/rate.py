"""How many samples a second a loader gives with one setting, in this process and its workers."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from holdfast.data.loading.phases import move
from holdfast.data.loading.setting import Setting
from holdfast.data.loading.source import Batches, Source, set_threads


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
    threads = _threads_now()
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
            arrivals.append((time.perf_counter(), source.count(batch, batches and batches.given[len(arrivals)])))
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
        given = batches.given[place] if batches is not None and place < len(batches.given) else []
        raise LoaderFailed(error, list(given) if isinstance(given, (list, tuple)) else [given]) from error


def _threads_now() -> int:
    import torch

    return int(torch.get_num_threads())
