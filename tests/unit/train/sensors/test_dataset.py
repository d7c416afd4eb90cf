"""Events come in chunks: each once, in an order that the seed and the epoch decide, with few chunks in memory."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[3] / "trainings"))
from loop_sensors import events, settings_of

from holdfast.state.fast_forward import describe
from holdfast.train.sensors.dataset import OPEN, STREAMS, SensorData
from holdfast.train.sensors.opening import open_events

ROWS, BATCH, CHUNK = 1010, 16, 20


@pytest.fixture
def data(tmp_path: Path) -> SensorData:
    np.savez(tmp_path / "events.npz", **events(ROWS))
    np.savez(tmp_path / "val.npz", **events(30))
    paths = {"data": str(tmp_path / "events.npz"), "val": str(tmp_path / "val.npz")}
    opened = open_events(settings_of({**paths, "chunksize": CHUNK}))
    return SensorData(opened.files, opened.train, opened.array, opened.targets)


def order(data: SensorData, epoch: int = 0, ranks: int = 1, **more: object) -> list[list[int]]:
    """What each rank gets."""
    samplers = [data.sampler(BATCH, ranks, rank, seed=1, **more) for rank in range(ranks)]  # type: ignore[arg-type]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    assert all(len(list(sampler)) == len(sampler) for sampler in samplers)
    return [list(sampler) for sampler in samplers]


def test_every_event_comes_once_and_each_epoch_has_its_order(data: SensorData) -> None:
    (first,), (again,), (second,) = order(data), order(data), order(data, epoch=1)
    assert sorted(first) == list(range(ROWS)) == sorted(second)
    assert first == again and first != second


def test_a_batch_mixes_events_of_several_chunks_but_only_few(data: SensorData) -> None:
    (whole,) = order(data)
    chunks = [{index // CHUNK for index in whole[start : start + BATCH]} for start in range(0, ROWS - STREAMS * BATCH, BATCH)]
    assert all(1 <= len(some) <= OPEN + 2 for some in chunks)
    assert sum(len(some) for some in chunks) / len(chunks) > 2
    shared = [bool(some & chunks[number]) for number, some in enumerate(chunks[STREAMS:])]
    assert sum(shared) > 0.9 * len(shared), "the next batch of a worker needs chunks that it has"


def test_ranks_share_the_batches_of_one(data: SensorData) -> None:
    (whole,), (one, other) = order(data), order(data, ranks=2)
    for start in range(0, ROWS // BATCH * BATCH, BATCH):
        both = one[start // 2 : (start + BATCH) // 2] + other[start // 2 : (start + BATCH) // 2]
        assert sorted(both) == sorted(whole[start : start + BATCH])


def test_a_resumed_run_may_have_another_number_of_ranks(data: SensorData) -> None:
    loader = DataLoader(data, BATCH, sampler=data.sampler(BATCH, 1, 0))
    assert describe(loader)["sampler"] == "DistributedSampler", "its position is that of one order, which ranks share"


def test_validation_is_in_order_of_chunks_without_repeats(data: SensorData) -> None:
    one, other = order(data, ranks=2, shuffle=False)
    assert sorted(one + other) == list(range(ROWS))


def test_whole_batches_drop_the_last_small_one(data: SensorData) -> None:
    data.whole_batches = True
    (whole,) = order(data)
    assert len(whole) == len(set(whole)) == ROWS // BATCH * BATCH


def test_a_batch_has_the_events_of_its_indices(data: SensorData) -> None:
    columns = events(ROWS)
    batch = data.__getitems__([700, 3, 1009, 4])
    assert sorted(batch["index"].tolist()) == [3, 4, 700, 1009]
    for values, targets, index in zip(batch["values"], batch["targets"], batch["index"], strict=True):
        assert np.array_equal(values[0], columns["charge"][index]) and targets[0] == columns["energy"][index]
    single = data[700]
    assert torch.equal(single["values"], batch["values"][batch["index"] == 700][0])


def test_memory_holds_a_bounded_number_of_chunks_and_each_is_read_once(data: SensorData) -> None:
    sampler, reads = data.sampler(BATCH, 1, 0, seed=0), []
    read = data.chunk

    def counted(place: int) -> object:
        reads.extend([place] if place not in data._kept else [])
        return read(place)

    data.chunk = counted  # type: ignore[method-assign, assignment]
    most = 0
    for batch in torch.utils.data.BatchSampler(sampler, BATCH, drop_last=False):
        data.__getitems__(batch)
        most = max(most, len(data._kept))
    assert most <= STREAMS * (OPEN + 1) < len(data.blocks)
    assert len(reads) <= 1.3 * len(data.blocks)


def test_workers_give_the_same_batches_as_none(data: SensorData) -> None:
    batches = []
    for workers in (0, 2):
        loader = DataLoader(data, BATCH, sampler=data.sampler(BATCH, 1, 0), num_workers=workers, collate_fn=lambda batch: batch)
        batches.append([(batch["index"], batch["values"].sum()) for batch in loader])
    assert all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(*batches, strict=True))


def test_a_worker_that_is_not_forked_opens_the_files_again(data: SensorData) -> None:
    data.__getitems__([5])
    copied = pickle.dumps(data)
    assert len(copied) < 20_000
    assert torch.equal(pickle.loads(copied)[5]["values"], data[5]["values"])
