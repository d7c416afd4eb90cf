"""Snapshots: what they cost, that no bad one is offered, and that a roll-back leads to the same bits."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case
from snapshot_loop import Loop, same, snapshots_of
from torch import nn

from holdfast.environment.cgroup import Limits
from holdfast.errors import CannotRestore
from holdfast.state import host_copy
from holdfast.state import snapshots as module
from holdfast.state.background import BackgroundThread
from holdfast.state.host_copy import Block, LiveState, Source, copy_state
from holdfast.state.report import SaveReport


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_roll_back_and_the_same_batches_lead_to_the_same_bits(loop: Loop) -> None:
    snapshots = snapshots_of(loop)
    loop.run(0, 20)
    assert snapshots.take(20)
    first = loop.run(20, 45)
    snapshots.restore(20)
    assert same(loop.run(20, 45), first)


def test_a_training_with_snapshots_computes_the_same_bits_as_one_without() -> None:
    plain, watched = Loop(), Loop()
    helper = BackgroundThread("test", on_error=lambda what, error: pytest.fail(f"{what}: {error}"))
    snapshots = snapshots_of(watched, every=5, run_later=helper.submit)

    def between(step: int) -> None:
        if snapshots.due(step):
            snapshots.take(step)

    torch.manual_seed(5)
    expected, generator = plain.run(0, 120), torch.get_rng_state()
    torch.manual_seed(5)
    assert same(watched.run(0, 120, between), expected)
    assert torch.equal(torch.get_rng_state(), generator)
    helper.close()
    assert snapshots.taken > 3


def test_no_snapshot_with_a_nan_is_offered(loop: Loop) -> None:
    snapshots = snapshots_of(loop)
    loop.run(0, 10)
    snapshots.take(10)
    loop.run(10, 20)
    with torch.no_grad():
        loop.model[3].weight[1, 2] = torch.nan
    snapshots.take(20)
    assert snapshots.steps() == [10]
    found = snapshots.at_or_before(30)
    assert found is not None and found.step == 10 and found.verified
    with pytest.raises(CannotRestore, match="step 20"):
        snapshots.restore(20)


@every_case(("was_clean", "told"), [(True, 1), (False, 0)])
def test_a_state_that_is_no_longer_finite_is_reported(was_clean: bool, told: int) -> None:
    loop, folder = Loop(), Path("checkpoints")
    report = SaveReport(folder, warns=False)
    snapshots = snapshots_of(loop, report=report)
    if was_clean:
        snapshots.take(0)
    loop.run(0, 5)
    with torch.no_grad():
        loop.model[1].running_var[0] = torch.inf
    snapshots.take(5)
    assert [(row["code"], row["step"], row["evidence"]["bad_tensors"]) for row in report.rows] == [
        ("checkpoint-non-finite", 5, 1)
    ] * told


@pytest.mark.parametrize("where", ["weight", "moment", "statistic"])
def test_bad_numbers_are_seen_wherever_they_are_even_if_nobody_has_looked_yet(loop: Loop, where: str) -> None:
    jobs: list[Callable[[], None]] = []
    snapshots = snapshots_of(loop, run_later=jobs.append)
    loop.run(0, 5)
    snapshots.take(5)
    with torch.no_grad():
        if where == "weight":
            loop.model[0].bias[0] = torch.inf
        elif where == "moment":
            loop.optimizer.state[loop.model[0].weight]["exp_avg_sq"][0, 0] = torch.inf
        else:
            loop.model[1].running_var[0] = torch.nan
    snapshots.take(6)
    assert snapshots.steps() == [5, 6]
    found = snapshots.at_or_before(6)
    assert found is not None and found.step == 5
    assert snapshots.steps() == [5]


@every_case("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_kind_of_number_is_checked(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    for bad in (None, torch.nan, torch.inf, -torch.inf):
        values = [torch.full((1000,), largest, dtype=dtype), torch.zeros(7, dtype=dtype)]  # a sum of these overflows
        if bad is not None:
            values[0][617] = bad
        live_state = LiveState([Source(value, checked=True) for value in values], {})
        copy = copy_state(live_state, Block(live_state.size, pinned=False))
        assert copy.non_finite() == ({} if bad is None else {0: 1})


def test_an_infinite_mask_is_no_fault(loop: Loop) -> None:
    loop.model.register_buffer("mask", torch.full((4,), -torch.inf))
    snapshots = snapshots_of(loop)
    snapshots.take(1)
    assert snapshots.steps() == [1]


def test_memory_is_used_again_and_bounded(loop: Loop) -> None:
    snapshots = snapshots_of(loop, every=1, keep=3)
    loop.run(0, 2)
    made: list[int] = []

    def between(step: int) -> None:
        if snapshots.due(step):
            snapshots.take(step)
        made.append(len({id(block) for block in (*snapshots._blocks, *(s.block for s in snapshots._snapshots))}))

    loop.run(2, 60, between)
    assert max(made) == 3 and snapshots.taken > 40


def test_fewer_are_kept_when_memory_is_short_and_none_is_said_aloud(loop: Loop) -> None:
    loop.run(0, 2)
    size = loop.state.read().size
    two = snapshots_of(loop, every=1, memory_limit=int(2.5 * size))
    loop.run(2, 30, lambda step: two.due(step) and two.take(step))
    assert len(two.steps()) == 2
    said: list[str] = []
    none = snapshots_of(loop, memory_limit=size // 2, warn=said.append)
    loop.run(30, 40, lambda step: none.due(step) and none.take(step))
    assert none.steps() == [] and not none.take(40)
    assert len(said) == 1 and "No snapshots" in said[0]


def test_memory_that_cannot_be_had_is_not_asked_for_again(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise MemoryError

    said: list[str] = []
    snapshots = snapshots_of(loop, warn=said.append)
    monkeypatch.setattr(module, "Block", none)
    loop.run(0, 10, lambda step: snapshots.due(step) and snapshots.take(step))
    assert len(said) == 1 and "No snapshots" in said[0]


def test_a_costly_snapshot_is_taken_less_often_but_not_with_several_ranks(loop: Loop) -> None:
    alone, several = snapshots_of(loop, budget=1e-6), snapshots_of(loop, budget=1e-6, world_size=2)
    taken: list[int] = []

    def between(step: int) -> None:
        if alone.due(step):
            alone.take(step)
        if several.due(step) and several.take(step):
            taken.append(step)

    loop.run(0, 220, between)
    assert alone.every == 5000 and alone.taken == 4
    assert several.every == 50 and taken == [1, 10, 20, 50, 100, 150, 200]


@pytest.mark.parametrize("number", [1, 3])
def test_one_snapshot_that_a_busy_machine_held_up_does_not_make_them_rare(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    snapshots = snapshots_of(loop, budget=1.0)

    def held_up(*arguments: Any) -> Any:
        time.sleep(0.5 if snapshots.taken == number else 0.0)
        return copy_state(*arguments)

    monkeypatch.setattr(module, "copy_state", held_up)
    taken: list[int] = []
    loop.run(0, 220, lambda step: taken.append(step) if snapshots.due(step) and snapshots.take(step) else None)
    assert taken == [1, 10, 20, 50, 100, 150, 200]


def test_a_graph_that_waits_for_its_backward_pass_survives_a_roll_back(loop: Loop) -> None:
    snapshots = snapshots_of(loop)
    loop.run(0, 5)
    snapshots.take(5)
    loop.run(5, 8)
    waiting = loop.model(loop.x[0]).square().mean()  # as the generator's loss waits while the discriminator is updated
    snapshots.restore(5)
    waiting.backward()


def test_newer_ones_are_dropped_after_a_roll_back(loop: Loop) -> None:
    snapshots = snapshots_of(loop)
    for step in (10, 20, 30):
        snapshots.take(step)
    snapshots.drop_after(20)
    assert snapshots.steps() == [10, 20]
    snapshots.forget()
    assert snapshots.steps() == [] and not snapshots.due(1000)


def test_snapshots_from_before_the_optimizer_grew_are_given_up(loop: Loop) -> None:
    snapshots = snapshots_of(loop)
    snapshots.take(10)
    loop.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    snapshots.take(20)
    assert snapshots.steps() == [20]


def test_memory_is_made_in_the_helper_thread_and_the_training_does_not_wait_for_it(loop: Loop) -> None:
    jobs: list[Callable[[], None]] = []
    snapshots = snapshots_of(loop, run_later=jobs.append)
    loop.run(0, 1)
    assert not snapshots.due(1) and not snapshots.due(2) and len(jobs) == 1
    jobs.pop()()
    assert snapshots.due(3)


def test_a_limit_of_the_container_counts() -> None:
    assert host_copy.available_memory(Limits(memory=1000, memory_used=500)) == 500
    assert host_copy.available_memory(Limits(memory=1000, memory_used=2000)) == 0
    assert 1000 < host_copy.snapshot_memory() < host_copy.available_memory(Limits())


def test_a_job_that_fails_is_reported_and_the_next_one_is_done() -> None:
    said: list[str] = []
    helper = BackgroundThread("test", on_error=lambda what, error: said.append(str(error)))
    done = threading.Event()
    helper.submit(lambda: [][0])
    helper.submit(done.set)
    assert done.wait(5.0)
    helper.close()
    assert said == ["list index out of range"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can keep memory from forked processes")
def test_a_forked_loader_worker_does_not_get_the_memory_of_snapshots() -> None:
    """Copying it, at the fork or page by page after it, cost seconds in each epoch."""
    block = Block(1 << 20, pinned=False)

    def is_mapped() -> bool:
        ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
        return any(int(begin, 16) <= block.memory.ctypes.data < int(end, 16) for begin, end in ranges)

    assert is_mapped()
    receive, send = os.pipe()
    if os.fork() == 0:
        os.write(send, b"there" if is_mapped() else b"gone")
        os._exit(0)
    os.wait()
    assert os.read(receive, 5) == b"gone"
