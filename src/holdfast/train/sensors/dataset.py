"""Events for a loader, read in chunks: at most a few lie in memory, however large the files are.

A sampler draws the events of a few chunks at a time, in a random order that depends on the seed and the epoch only. It has eight
streams of chunks, and gives a batch of each in turn: with 1, 2, 4 or 8 workers each chunk is read by one worker.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from holdfast.train.sensors.array import SensorArray, Target
from holdfast.train.sensors.chunks import Block, Events, read_events
from holdfast.train.sensors.files import EventFile

STREAMS, OPEN = 8, 3  # streams of chunks; chunks of each from which events are drawn at the same time


class SensorData(Dataset[Any]):
    """Batches `values` (B×channels×sensors), `targets` (B×values) and `index`; a single event likewise, without B."""

    fast_forward = True  # used samples need not be drawn again when an epoch is resumed

    def __init__(
        self, files: Sequence[EventFile], blocks: Sequence[Block], array: SensorArray, targets: Sequence[Target] = ()
    ) -> None:
        self.files, self.blocks, self.array, self.targets = files, list(blocks), array, targets
        self.starts = np.cumsum([0, *(block.stop - block.start for block in blocks)])
        self._kept: OrderedDict[int, Events] = OrderedDict()
        self.most_kept = STREAMS * (OPEN + 1)
        self.whole_batches = False  # drop the last batch of an epoch where it is smaller: a compiled model compiles again for it

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: values[0] for name, values in self.__getitems__([index]).items()}

    def __getitems__(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        """A batch, ordered by the chunks in which its events lie."""
        wanted = np.asarray(indices, np.int64)
        places = np.searchsorted(self.starts, wanted, side="right") - 1
        order = np.argsort(places, kind="stable")
        wanted, places = wanted[order], places[order]
        size = sum(target.size for target in self.targets)
        values = _shared((len(wanted), len(self.array.channels), self.array.sensors))
        targets = torch.empty((len(wanted), size))
        into, rows = values.numpy(), targets.numpy()
        for place in np.unique(places):
            first, last = np.searchsorted(places, [place, place + 1])
            events, inner = self.chunk(int(place)), wanted[first:last] - self.starts[place]
            np.take(events.values, inner, axis=0, out=into[first:last], mode="clip")  # without clip it copies once more
            rows[first:last] = events.targets[inner]
        return {"values": values, "targets": targets, "index": torch.from_numpy(wanted)}

    def chunk(self, place: int) -> Events:
        """All events of a block; the least recently used ones are dropped."""
        if place not in self._kept:
            while len(self._kept) >= self._room():
                self._kept.popitem(last=False)
            self._kept[place] = read_events(self.files[self.blocks[place].file], self.blocks[place], self.array, self.targets)
        self._kept.move_to_end(place)
        return self._kept[place]

    def _room(self) -> int:
        """Chunks that this process keeps: those of its share of the streams."""
        worker = get_worker_info()
        own = worker is not None and STREAMS % worker.num_workers == 0
        return max(2, self.most_kept // (worker.num_workers if worker is not None and own else 1))

    def sampler(self, batch: int, world_size: int, rank: int, *, seed: int = 0, shuffle: bool = True) -> ChunkSampler:
        """The order of the events, in which a batch needs few chunks."""
        mean = max(1.0, len(self) / len(self.blocks))
        self.most_kept = STREAMS * ((OPEN if shuffle else 1) + int(np.ceil(batch / mean)))
        return ChunkSampler(self, batch, world_size, rank, seed=seed, shuffle=shuffle)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": OrderedDict()}


class ChunkSampler(DistributedSampler[Any]):
    """All ranks share one order of batches, and each takes its part of every batch."""

    splits_common_order = True

    def __init__(self, data: SensorData, batch: int, world_size: int, rank: int, *, seed: int, shuffle: bool) -> None:
        super().__init__(data, world_size, rank, seed=seed, shuffle=shuffle)
        self._data, self._batch = data, batch
        self._whole = shuffle and data.whole_batches and len(data) > 4 * batch
        if not shuffle:  # for validation: no event is repeated
            self.num_samples = len(range(rank, len(data), world_size))
        elif self._whole:
            self.num_samples = len(data) // batch * batch // world_size

    def __iter__(self) -> Iterator[int]:
        streams = [self._stream(number) for number in range(min(STREAMS, len(self._data.blocks)))]
        rest: list[Any] = []
        while streams:
            for stream in list(streams):
                some = next(stream)
                if len(some) == self._batch:
                    yield from some[self.rank :: self.num_replicas].tolist()
                else:
                    rest.append(some)
                    streams.remove(stream)
        left = np.concatenate(rest)
        left = left[: len(left) // self._batch * self._batch] if self._whole else left
        if self.shuffle and len(left) % self.num_replicas:
            left = np.concatenate([left, left[: self.num_replicas - len(left) % self.num_replicas]])
        yield from left[self.rank :: self.num_replicas].tolist()

    def _stream(self, number: int) -> Iterator[Any]:
        """Batches of every eighth chunk, and at last what does not fill one."""
        held = np.zeros(0, np.int64)
        for slot in self._slots(number):
            held = np.concatenate([held, slot])
            while len(held) >= self._batch:
                yield held[: self._batch]
                held = held[self._batch :]
        yield held

    def _slots(self, number: int) -> Iterator[Any]:
        """Events of a stream. Shuffled, each chunk is divided over `OPEN` slots, so that one chunk is read for each slot."""
        starts, blocks = self._data.starts, np.arange(len(self._data.blocks))
        if not self.shuffle:
            for block in blocks[number::STREAMS]:
                yield np.arange(starts[block], starts[block + 1])
            return
        chosen = np.random.default_rng((self.seed, self.epoch)).permutation(blocks)[number::STREAMS]
        random = np.random.default_rng((self.seed, self.epoch, number))
        parts: list[list[Any]] = []
        for block in [*chosen, *[-1] * (OPEN - 1)]:
            if block >= 0:
                events = random.permutation(np.arange(starts[block], starts[block + 1]))
                parts.append(np.array_split(events, OPEN))
            slot = [some.pop(0) for some in parts]
            parts = [some for some in parts if some]
            if slot:
                yield random.permutation(np.concatenate(slot))


def _shared(shape: tuple[int, ...]) -> torch.Tensor:
    """An empty tensor; in a worker it lies where the main process can read it, which saves a copy of the batch."""
    if get_worker_info() is None:
        return torch.empty(shape)
    storage = torch.UntypedStorage._new_shared(4 * int(np.prod(shape)))  # type: ignore[no-untyped-call]
    return torch.empty(0).set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]
