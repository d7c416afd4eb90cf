"""Where the time of a sample goes, measured in a process that loads by itself; in a worker the same things happen.

A transform that the data set holds counts as augmenting. What else its `__getitem__` does, and cannot be told from outside, is
"sample"; what is left (drawing indices, walking through a stream) is "other".
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.data.loading.clock import COLLATE, OTHER, REST, TRANSFER, Clock
from holdfast.data.loading.known_calls import clocked
from holdfast.data.loading.setting import Phases
from holdfast.data.loading.source import Source

At = Callable[[Any], None]


class SampleFailed(Exception):
    """A sample that cannot be loaded."""

    def __init__(self, index: Any, error: BaseException) -> None:
        super().__init__(str(error))
        self.index, self.error = index, error


def measured_phases(source: Source, seconds: float, at: At, *, device: str | None) -> Phases:
    """Load for so long, one sample more at the start that does not count. `at` is told each index before it is loaded."""
    for _ in itertools.islice(_groups(source, Clock(), at, lambda: True), 1):
        pass  # imports, file handles, the first look at an index
    clock = Clock()
    until = time.perf_counter() + seconds
    samples = size = 0
    with clocked(clock, source.dataset) as augments, clock.phase(OTHER):
        for group in _groups(source, clock, at, lambda: time.perf_counter() > until):
            with clock.phase(COLLATE):
                batch = source.collate(group)
            with clock.phase(TRANSFER):
                _moved(batch, device)
            count = source.count(batch) if source.ready_made else len(group)
            size, samples = max(size, bytes_of(batch) // max(1, count)), samples + count
            if time.perf_counter() > until:
                break
    per = {name: spent / max(1, samples) for name, spent in clock.seconds.items()}
    unsure = not augments and not source.own_reading and per[REST] > 0.1 * sum(per.values())
    notes = ("the data set has no attribute `transform`: if it augments, that counts as sample",) if unsure else ()
    return Phases(seconds=per, samples=samples, sample_bytes=size, notes=notes)


def _groups(source: Source, clock: Clock, at: At, over: Callable[[], bool]) -> Iterator[Any]:
    """Samples as `collate_fn` gets them; a group is cut short when the time is over."""
    if source.stream:
        yield from _of_stream(source, clock, at, over)
        return
    while True:
        any_group = False
        for indices in source.indices:
            any_group = True
            yield _one(source, indices, clock, at) if source.whole else _several(source, list(indices), clock, at, over)
        if not any_group:
            return


def _several(source: Source, indices: list[Any], clock: Clock, at: At, over: Callable[[], bool]) -> Any:
    if callable(getattr(source.dataset, "__getitems__", None)):
        return _one(source, indices, clock, at, source.dataset.__getitems__)
    group: list[Any] = []
    for index in indices:
        group.append(_one(source, index, clock, at))
        if over():
            break
    return group


def _one(source: Source, index: Any, clock: Clock, at: At, get: Any = None) -> Any:
    at(index)
    with clock.phase(REST):
        try:
            return get(index) if get is not None else source.dataset[index]
        except Exception as error:
            raise SampleFailed(index, error) from error


def _of_stream(source: Source, clock: Clock, at: At, over: Callable[[], bool]) -> Iterator[Any]:
    size, count = source.loader.batch_size, 0
    while True:
        stream, before, group = iter(source.dataset), count, []
        while True:
            at(count)
            with clock.phase(REST):
                try:
                    one = next(stream)
                except StopIteration:
                    break
                except Exception as error:
                    raise SampleFailed(count, error) from error
            count += 1
            if size is None:
                yield one
                continue
            group.append(one)
            if len(group) == size or over():
                yield group
                group = []
        if count == before:
            return


def _moved(batch: Any, device: str | None) -> None:
    if device is not None:
        import torch

        move(batch, device, non_blocking=False)
        torch.cuda.synchronize()


def move(batch: Any, device: str, *, non_blocking: bool) -> Any:
    """All tensors of a batch on another device."""
    from torch.utils._pytree import tree_map

    return tree_map(lambda leaf: leaf.to(device, non_blocking=non_blocking) if hasattr(leaf, "to") else leaf, batch)


def bytes_of(batch: Any) -> int:
    """Bytes of the tensors of a batch."""
    from torch.utils._pytree import tree_leaves

    return sum(leaf.nbytes for leaf in tree_leaves(batch) if hasattr(leaf, "nbytes"))
