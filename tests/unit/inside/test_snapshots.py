"""Snapshots: which are kept, what they cost, that no bad one is offered, and that they survive on disk."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from holdfast.checkpoints.manifest import list_checkpoints
from holdfast.errors import CannotRestore, StorageError
from holdfast.inside.helper import Helper
from holdfast.inside.snapshots import host_memory
from holdfast.inside.snapshots.host_copy import Block, Layout, Source
from holdfast.inside.snapshots.retention import fitting_interval, to_give_up
from holdfast.inside.snapshots.snapshots import Snapshots
from holdfast.inside.snapshots.state import TrainingState


class Loop:
    """A small real training with BatchNorm, AdamW and a schedule."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 1e-2, total_steps=2000)
        torch.manual_seed(1)
        self.x, self.y = torch.randn(64, 16, 6), torch.randint(0, 3, (64, 16))
        self.state = TrainingState.discover([self.model], [self.optimizer])

    def run(self, begin: int, end: int, between: Callable[[int], Any] = lambda step: None) -> dict[str, Any]:
        for number in range(begin, end):
            between(number)
            nn.functional.cross_entropy(self.model(self.x[number % 64]), self.y[number % 64]).backward()
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
        return self.everything()

    def everything(self) -> dict[str, Any]:
        parts = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        for number, entry in self.optimizer.state_dict()["state"].items():
            parts.update({f"{number}.{k}": v for k, v in entry.items()})
        parts["lr"] = torch.tensor([*self.schedule.get_last_lr(), self.optimizer.param_groups[0]["lr"]], dtype=torch.float64)
        return copy.deepcopy(parts)


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


@pytest.fixture(autouse=True)
def one_thread():  # small sums are slower with several, and far slower beside other tests
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def snapshots_of(loop: Loop, **settings: Any) -> Snapshots:
    return Snapshots(lambda: loop.state, **{"memory_limit": 1 << 24, "budget": 1e9, **settings})


def test_a_roll_back_and_the_same_batches_lead_to_the_same_bits(loop: Loop) -> None:
    snapshots = snapshots_of(loop)
    loop.run(0, 20)
    assert snapshots.take(20)
    first = loop.run(20, 45)
    snapshots.restore(20)
    assert same(loop.run(20, 45), first)


def test_a_training_with_snapshots_computes_the_same_bits_as_one_without() -> None:
    plain, watched = Loop(), Loop()
    helper = Helper("test", on_trouble=lambda what, error: pytest.fail(f"{what}: {error}"))
    snapshots = snapshots_of(watched, every=5, run_later=helper.later)

    def between(step: int) -> None:
        snapshots.wait_for_copies()
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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_kind_of_number_is_checked(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    for bad in (None, torch.nan, torch.inf, -torch.inf):
        values = [torch.full((1000,), largest, dtype=dtype), torch.zeros(7, dtype=dtype)]  # a sum of these overflows
        if bad is not None:
            values[0][617] = bad
        sources = [Source(value, steady=True, checked=True) for value in values]
        layout = Layout(sources)
        block = Block(layout.size, pin=False)
        for host, value in zip(block.lay_out(layout), values, strict=True):
            host.copy_(value)
        assert block.is_finite() == (bad is None)


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
        made.append(
            len(
                {s.block.memory.ctypes.data for s in snapshots._snapshots}
                | {b.memory.ctypes.data for b in snapshots._blocks.free}
            )
        )

    loop.run(2, 60, between)
    assert max(made) == 3 and snapshots.taken > 40


def test_fewer_are_kept_when_memory_is_short_and_none_is_said_aloud(loop: Loop) -> None:
    loop.run(0, 2)
    size = Layout(loop.state.read().sources).size
    two = snapshots_of(loop, every=1, memory_limit=int(2.5 * size))
    loop.run(2, 30, lambda step: two.due(step) and two.take(step))
    assert len(two.steps()) == 2
    said: list[str] = []
    none = snapshots_of(loop, memory_limit=size // 2, say=said.append)
    loop.run(30, 40, lambda step: none.due(step) and none.take(step))
    assert none.steps() == [] and not none.take(40)
    assert len(said) == 1 and "No snapshots" in said[0]


def test_memory_that_cannot_be_had_is_not_asked_for_again(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise MemoryError

    said: list[str] = []
    snapshots = snapshots_of(loop, say=said.append)
    monkeypatch.setattr("holdfast.inside.snapshots.blocks.Block", none)
    loop.run(0, 10, lambda step: snapshots.due(step) and snapshots.take(step))
    assert len(said) == 1 and "Memory is short" in said[0]


@pytest.mark.parametrize(("places", "newest_but_one", "oldest"), [(3, 16, 3), (4, 5, 8), (5, 3, 10)])
def test_the_newest_is_kept_and_older_ones_at_growing_distances(places: int, newest_but_one: float, oldest: float) -> None:
    kept: list[int] = []
    for step in [1, 10, *range(50, 20_000, 50)]:
        goes = to_give_up(kept, step, every=50, keep=places)
        kept = sorted({*kept, step} - {goes})
        assert len(kept) <= places and kept[-1] == step
        if step > 1000:
            ages = [(step - other) / 50 for other in kept]
            assert ages[-2] <= newest_but_one, "a fault that is seen at once loses few steps"
            assert oldest <= ages[0] <= 33, "a fault that is seen late has a clean ancestor"


def test_with_one_place_the_newest_takes_it() -> None:
    assert to_give_up([50], 100, every=50, keep=1) == 50


def test_the_interval_fits_the_budget_in_round_numbers() -> None:
    assert fitting_interval(0.0001, 0.1, share=0.005, at_least=50) == 50
    assert fitting_interval(0.1, 0.1, share=0.005, at_least=50) == 200
    assert fitting_interval(0.2, 0.1, share=0.005, at_least=50) == 500
    assert fitting_interval(60.0, 0.1, share=0.005, at_least=50) == 5000
    assert fitting_interval(0.1, 0.0, share=0.005, at_least=50) == 5000


def test_a_costly_snapshot_is_taken_less_often_but_not_with_several_ranks(loop: Loop) -> None:
    alone, several = snapshots_of(loop, budget=1e-6), snapshots_of(loop, budget=1e-6, world_size=2)
    taken: list[int] = []

    def between(step: int) -> None:
        if alone.due(step):
            alone.take(step)
        if several.due(step) and several.take(step):
            taken.append(step)

    loop.run(0, 220, between)
    assert alone.every == 5000 and alone.taken == 2
    assert several.every == 50 and taken == [1, 10, 50, 100, 150, 200]


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


def test_a_snapshot_that_is_being_read_is_not_overwritten(loop: Loop, tmp_path: Path) -> None:
    jobs: list[Callable[[], None]] = []
    snapshots = snapshots_of(loop, keep=1, run_later=jobs.append)
    loop.run(0, 5)
    snapshots.take(5)
    jobs.pop()()
    expected = loop.model[0].weight.detach().clone()
    assert snapshots.save(tmp_path) == tmp_path / "step-000005"
    loop.run(5, 8)
    assert not snapshots.take(8)  # its only place is being written to disk
    jobs.pop()()
    assert torch.equal(load_file(tmp_path / "step-000005" / "weights.safetensors")["0.weight"], expected)
    assert snapshots.take(8)


def test_memory_is_made_in_the_helper_thread_and_the_training_does_not_wait_for_it(loop: Loop) -> None:
    jobs: list[Callable[[], None]] = []
    snapshots = snapshots_of(loop, run_later=jobs.append)
    loop.run(0, 1)
    assert not snapshots.due(1) and not snapshots.due(2) and len(jobs) == 1
    jobs.pop()()
    assert snapshots.due(3)


def test_the_outside_is_told_which_snapshots_are_clean(loop: Loop, tmp_path: Path) -> None:
    index = tmp_path / "snapshots.json"
    snapshots = snapshots_of(loop, index=index)
    snapshots.take(50)
    snapshots.take(100)
    assert json.loads(index.read_text()) == {"steps": [50, 100], "every": 50}
    snapshots.drop_after(50)
    assert json.loads(index.read_text())["steps"] == [50]
    assert [path.name for path in tmp_path.iterdir()] == ["snapshots.json"]


# On disk


def test_a_new_process_goes_on_from_disk_bit_for_bit(loop: Loop, tmp_path: Path) -> None:
    snapshots = snapshots_of(loop)
    loop.run(0, 20)
    snapshots.take(20)
    snapshots.save(tmp_path)
    expected = loop.run(20, 40)
    other = Loop(seed=9)
    assert snapshots_of(other).restore_from_disk(tmp_path) == 20
    assert same(other.run(20, 40), expected)


def test_a_checkpoint_holds_nothing_twice_and_is_plain(loop: Loop, tmp_path: Path) -> None:
    wide = nn.Linear(512, 512)
    optimizer = torch.optim.SGD(wide.parameters(), lr=0.1)
    state = TrainingState.discover([wide], [optimizer])
    snapshots = Snapshots(lambda: state, memory_limit=1 << 28)
    snapshots.take(3)
    path = snapshots.save(tmp_path)
    assert path is not None
    sizes = {file.name: file.stat().st_size for file in path.iterdir()}
    assert sizes["weights.safetensors"] < 1.1 * 512 * 513 * 4 and sizes["training.pt"] < 50_000
    assert load_file(path / "weights.safetensors").keys() == {"weight", "bias"}
    assert torch.load(path / "training.pt", weights_only=True)["optimizers"][0] == optimizer.state_dict()


def test_the_newest_clean_one_is_saved_and_a_torn_checkpoint_is_passed_over(loop: Loop, tmp_path: Path) -> None:
    snapshots = snapshots_of(loop)
    for step in (10, 20):
        loop.run(step, step + 5)
        snapshots.take(step)
        snapshots.save(tmp_path)
    (tmp_path / "step-000020" / "training.pt").write_bytes(b"")
    assert snapshots.restore_from_disk(tmp_path) == 10
    damaged = tmp_path / "step-000010" / "weights.safetensors"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(bytes(data))
    with pytest.raises(StorageError, match="match"):
        snapshots.load(tmp_path / "step-000010")
    assert snapshots.restore_from_disk(tmp_path) is None


def test_only_three_checkpoints_stay_on_disk(loop: Loop, tmp_path: Path) -> None:
    snapshots = snapshots_of(loop)
    for step in (10, 20, 30, 40, 50):
        snapshots.take(step)
        snapshots.save(tmp_path)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-000030", "step-000040", "step-000050"]
    assert snapshots.restore_from_disk(tmp_path, at_or_before=45) == 40


def test_nothing_is_saved_when_there_is_nothing_clean(loop: Loop, tmp_path: Path) -> None:
    assert snapshots_of(loop).save(tmp_path) is None


def test_rank_one_of_a_replicated_model_writes_nothing_and_reads_rank_zeros(loop: Loop, tmp_path: Path) -> None:
    zero, one = snapshots_of(loop, world_size=2), snapshots_of(loop, world_size=2, rank=1)
    one.take(50)
    one.save(tmp_path)
    assert not list(tmp_path.iterdir())
    zero.take(50)
    zero.save(tmp_path)
    assert one.restore_from_disk(tmp_path) == 50


def test_a_limit_of_the_container_counts(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    own = tmp_path / "self"
    own.write_text("0::/job/inner\n")
    for name, text in {"memory.max": "1000", "memory.current": "700", "memory.stat": "anon 1\ninactive_file 200\n"}.items():
        (tmp_path / "job" / name).write_text(text)
    (tmp_path / "memory.max").write_text("max")
    assert list(host_memory._of_groups(tmp_path, own)) == [500]
    assert 0 < host_memory.share_for_snapshots() <= host_memory.available_memory()


def test_a_job_that_fails_is_reported_and_the_next_one_is_done() -> None:
    said: list[str] = []
    helper = Helper("test", on_trouble=lambda what, error: said.append(str(error)))
    done = threading.Event()
    helper.later(lambda: [][0])
    helper.later(done.set)
    assert done.wait(5.0)
    helper.close()
    assert said == ["list index out of range"]


def test_training_and_helper_at_the_same_time(loop: Loop, tmp_path: Path) -> None:
    said: list[str] = []
    helper = Helper("test", on_trouble=lambda what, error: said.append(f"{what}: {error!r}"))
    snapshots = snapshots_of(loop, every=1, run_later=helper.later, index=tmp_path / "snapshots.json")
    wanted = {}

    def between(step: int) -> None:
        if snapshots.due(step) and snapshots.take(step):
            wanted[step] = loop.model[0].weight.detach().clone()
            if step % 7 == 0:
                snapshots.save(tmp_path / "checkpoints")

    end = time.monotonic() + 3.0
    step = 0
    while time.monotonic() < end:
        loop.run(step, step + 20, between)
        step += 20
        found = snapshots.at_or_before(step)
        assert found is not None
        assert torch.equal(found.hosts[found.tree["models"][0]["parameters"]["0.weight"].number], wanted[found.step])
    helper.close()
    assert not said and len(wanted) > 20
