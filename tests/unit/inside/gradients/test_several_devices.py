"""Parameters on several devices, numbers of several ranks, optimizers on several GPUs: read where they can be, and never lost.

Without a GPU, `meta` is the other device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from every_case import every_case
from torch import nn
from watched_process import Watching, sgd, small, train

from holdfast.inside import training
from holdfast.inside.arm import arm_from_environment, armed
from holdfast.inside.gradients.device_reader import DeviceReader
from holdfast.inside.gradients.step_metrics import StepMetrics
from holdfast.inside.observers.parameters import WeightSample, weight_norms
from holdfast.inside.training import Training
from holdfast.signals.run_folder import RunFolder


@pytest.fixture
def distributed() -> Iterator[Callable[..., torch.Tensor]]:
    """Makes a distributed tensor, on the only rank there is."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    mesh = init_device_mesh("cpu", (1,))
    yield lambda value, placement: DTensor.from_local(torch.as_tensor(value), mesh, [placement])
    dist.destroy_process_group()


def the_training() -> Training:
    return armed().runtime.trainings[0]


# Weights


@every_case("size", [10, 1 << 19])
def test_weights_on_two_devices_are_sampled_on_the_first(size: int) -> None:
    weights = [torch.ones(size, device="meta"), torch.ones(size)]
    assert weight_norms(weights).shape == (2,) and weight_norms(weights).is_meta
    assert WeightSample(weights).compare(weights).is_meta


def test_weights_on_one_device_are_sampled_as_ever() -> None:
    before, after = [torch.full((4,), 2.0), torch.zeros(3)], [torch.full((4,), 3.0), torch.zeros(3)]
    assert weight_norms(after).tolist() == [6.0, 0.0]
    assert WeightSample(before).compare(after).item() == pytest.approx(0.5)


def test_the_update_of_a_single_tensor_in_place_is_measured() -> None:
    weight = torch.full((4,), 2.0)
    sample = WeightSample([weight])
    assert sample.compare([weight.mul_(1.5)]).item() == pytest.approx(0.5)


@pytest.mark.parametrize(("where", "what"), [(training, "WeightSample"), (training, "weight_norms"), (training, "plain_weights")])
def test_what_cannot_be_sampled_does_not_cost_the_guard(
    where: Any, what: str, run: Callable[..., RunFolder], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("two devices")

    folder = run("guard")
    armed().close_all()
    monkeypatch.setenv("HOLDFAST_DEBUG", "")
    monkeypatch.setenv("HOLDFAST_SAMPLING", "full")
    monkeypatch.setattr(where, what, fails)
    arm_from_environment()
    model = small()
    optimizer = sgd(model)
    losses = train(model, optimizer, 12)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    train(model, optimizer, 1, loss_of=lambda outputs: outputs.sum() * math.nan)
    assert all(a.equal(b) for a, b in zip(before, model.parameters(), strict=True))
    armed().close_all()
    assert all(math.isfinite(loss) for loss in losses)
    told = [entry["code"] for entry in folder.journal if entry["kind"] == "finding"]
    assert "holdfast-degraded" in told and "non-finite-loss" in told


# Numbers of several ranks


def test_a_norm_that_every_rank_knows_is_taken_and_one_that_none_knows_alone_is_not(
    distributed: Callable[..., torch.Tensor],
) -> None:
    from torch.distributed.tensor import Partial, Replicate

    metrics = StepMetrics(None)
    metrics.add("norm", distributed(3.0, Replicate()))
    metrics.add("loss", distributed(2.0, Partial()))
    assert metrics.norm == 3.0 and metrics.loss is None


def test_the_courier_carries_a_distributed_number(
    distributed: Callable[..., torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.tensor import Partial, Replicate

    class Event:
        def record(self, _stream: object) -> None: ...

        def query(self) -> bool:
            return True

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: None)
    reader, came = DeviceReader(torch.device("cpu")), list[Any]()
    reader.send(None, [torch.tensor(1.0), distributed(3.0, Replicate())], came.append)
    reader.send(None, [torch.tensor(1.0), distributed(3.0, Partial())], came.append)
    reader.collect()
    assert came[0].rest.tolist() == [1.0, 3.0] and came[1].rest is None


def test_gradients_are_read_before_clipping_once_the_norm_turned_out_to_be_of_several_ranks(
    watching: Watching, distributed: Callable[..., torch.Tensor]
) -> None:
    from torch.distributed.tensor import Partial

    model = small()
    optimizer = sgd(model)
    train(model, optimizer, 2)
    seen, parameters = the_training(), list(model.parameters())
    seen.budget.always_done = frozenset()
    seen.after_clipping(distributed(3.0, Partial()), 1.0, parameters)
    assert not seen.has_read_early()
    seen.before_clipping(parameters, 2.0)
    assert seen.has_read_early()


# Optimizers on several GPUs


def test_each_gpu_has_one_courier_and_all_are_collected(watching: Watching) -> None:
    model = nn.Linear(4, 1)
    optimizer = sgd(model)
    train(model, optimizer, 2)
    seen, came = the_training(), list[Any]()
    first, second = (seen.reader_for(torch.device("cuda", index)) for index in (0, 1))
    assert first is not None and second is not None
    assert seen.reader_for(torch.device("cuda", 0)) is first and seen.reader_for(torch.device("cuda", 1)) is second
    for number, reader in enumerate((first, second)):
        reader.send(None, [], lambda _parcel, number=number: came.append(number))
    seen._memory_at, seen._written_at = math.inf, -math.inf  # there is no memory to be read, and it is time to collect
    train(model, optimizer, 1)
    assert came == [0, 1]
