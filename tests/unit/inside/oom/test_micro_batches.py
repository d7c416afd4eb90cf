"""`@run.step`: the same gradient in as many parts as memory asks for."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from every_case import every_case
from torch import nn

import holdfast
from holdfast.errors import DoesNotFit, UsageError
from holdfast.inside.oom import micro_batches as module
from holdfast.inside.oom.shortage import shortage_of

Batch = dict[str, torch.Tensor]


pytestmark = pytest.mark.usefixtures("alone", "raising")


def out_of_memory() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 24.00 GiB")


class InBackward(torch.autograd.Function):
    """Memory runs out in the backward pass of more than `fits` samples."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, fits: int) -> torch.Tensor:
        ctx.fits = fits
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if len(gradient) > ctx.fits:
            raise out_of_memory()
        return gradient, None


class Trained:
    """A small model and a step function that fits a few samples only."""

    def __init__(self, *, fits: int, backward: bool = False, policy: str = "heal", norm: bool = False, **how: Any) -> None:
        torch.manual_seed(0)
        middle = nn.BatchNorm1d(8) if norm else nn.Tanh()
        self.model = nn.Sequential(nn.Linear(4, 8), middle, nn.Linear(8, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.run = holdfast.watch(self.model, self.optimizer, policy=policy)
        self.fits, self.backward, self.sizes = fits, backward, list[int]()
        self.step: Callable[..., torch.Tensor] = self.run.step(**how)(self.loss) if how else self.run.step(self.loss)

    def loss(self, batch: Batch) -> torch.Tensor:
        x = batch["x"]
        if len(x) > self.fits and not self.backward:
            raise out_of_memory()
        self.sizes.append(len(x))
        first = self.model[0](x)
        hidden = InBackward.apply(first, self.fits) if self.backward else first
        return nn.functional.cross_entropy(self.model[1:](hidden), batch["y"])

    @property
    def gradients(self) -> list[torch.Tensor]:
        return [parameter.grad.clone() for parameter in self.model.parameters() if parameter.grad is not None]

    def journal(self, kind: str) -> list[dict[str, Any]]:
        return [entry for entry in self.run._scope.run.journal if entry["kind"] == kind]


def batch_of(samples: int, seed: int = 1) -> Batch:
    made = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(samples, 4, generator=made), "y": torch.randint(0, 3, (samples,), generator=made)}


def assert_close(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(ours) == len(theirs) > 0
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


@every_case("backward", [False, True])
@every_case(("samples", "sizes"), [(8, [4, 4]), (7, [4, 3]), (10, [3, 3, 2, 2])])
def test_the_gradient_in_parts_is_that_of_the_whole(samples: int, sizes: list[int], backward: bool) -> None:
    split, whole = Trained(fits=4, backward=backward), Trained(fits=99)
    ours, theirs = split.step(batch_of(samples)), whole.step(batch_of(samples))
    assert split.sizes[-len(sizes) :] == sizes and not ours.requires_grad
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    assert_close(split.gradients, whole.gradients)


def test_a_healthy_step_is_the_plain_one_bit_for_bit() -> None:
    watched, plain = Trained(fits=99, norm=True), Trained(fits=99, norm=True)
    for number in range(4):
        batch = batch_of(6, seed=number)
        loss = plain.loss(batch)
        loss.backward()
        assert torch.equal(watched.step(batch), loss.detach())
        if number % 2:  # each update is of two calls
            for training in (watched, plain):
                training.optimizer.step()
                training.optimizer.zero_grad()
        for one, other in zip(watched.gradients, plain.gradients, strict=True):
            assert torch.equal(one, other)
    for one, other in zip(watched.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@every_case("backward", [False, True])
def test_gradients_of_earlier_calls_are_kept(backward: bool) -> None:
    split, whole = Trained(fits=3, backward=backward), Trained(fits=99)
    for training in (split, whole):
        training.step(batch_of(3, seed=1))
        training.step(batch_of(7, seed=2))
        training.step(batch_of(5, seed=3))
    assert_close(split.gradients, whole.gradients)


def test_gradients_of_earlier_calls_survive_a_step_that_cannot_be_done() -> None:
    training = Trained(fits=2, backward=True)
    training.step(batch_of(2))
    before = training.gradients
    training.fits = 0
    with pytest.raises(DoesNotFit, match=r"a single sample of a batch of 4 \(asked for 2\.5 GiB\)") as raised:
        training.step(batch_of(4))
    assert "smaller" in raised.value.fix
    for one, other in zip(training.gradients, before, strict=True):
        assert torch.equal(one, other)


def test_a_sum_is_added_up_and_not_weighted() -> None:
    split, whole = Trained(fits=4, reduction="sum"), Trained(fits=99, reduction="sum")
    for training in (split, whole):
        mean = training.loss
        training.step = training.run.step(lambda batch, mean=mean: mean(batch) * len(batch["x"]), reduction="sum")
        training.result = training.step(batch_of(7))
    torch.testing.assert_close(split.result, whole.result, rtol=1e-5, atol=0)
    assert_close(split.gradients, whole.gradients)


def test_a_mean_over_tokens_is_weighted_by_tokens() -> None:
    torch.manual_seed(0)
    model = nn.Embedding(11, 5)
    ids = torch.randint(0, 11, (6, 9))
    labels = torch.where(torch.arange(9) < torch.tensor([9, 1, 4, 2, 0, 0])[:, None], ids % 5, -100)  # the last part has none
    gradients = []
    for fits in (2, 99):
        model.zero_grad()
        with holdfast.watch(model, torch.optim.SGD(model.parameters()), policy="heal") as run:

            @run.step(weight=lambda ids, labels: (labels != -100).sum())
            def step(ids: torch.Tensor, labels: torch.Tensor, fits: int = fits) -> torch.Tensor:
                if len(ids) > fits:
                    raise out_of_memory()
                return nn.functional.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), ignore_index=-100)

            step(ids, labels=labels)
        assert model.weight.grad is not None
        gradients.append(model.weight.grad.clone())
    assert_close(gradients[:1], gradients[1:])


def test_a_scaler_scales_every_part_and_the_loss_stays_itself() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    split, whole = Trained(fits=3, scaler=scaler), Trained(fits=99)
    ours, theirs = split.step(batch_of(7)), whole.step(batch_of(7))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    scaler.unscale_(split.optimizer)
    assert_close(split.gradients, whole.gradients)


def test_batches_of_a_kind_of_their_own_are_split_as_told() -> None:
    def halves(batch: Any, parts: int) -> list[tuple[Any, int]]:
        cuts = torch.arange(len(batch.data["x"])).tensor_split(parts)
        return [(Own({k: v[at] for k, v in batch.data.items()}), len(at)) for at in cuts if len(at)]

    class Own:
        def __init__(self, data: Batch) -> None:
            self.data = data

    split, whole = Trained(fits=2), Trained(fits=99)
    with pytest.raises(DoesNotFit, match="cannot be split"):
        split.run.step(lambda batch: split.loss(batch.data))(Own(batch_of(5)))
    split.run.step(lambda batch: split.loss(batch.data), split=halves)(Own(batch_of(5)))
    whole.step(batch_of(5))
    assert split.sizes == [2, 1, 1, 1]
    assert_close(split.gradients, whole.gradients)


def test_a_split_that_was_found_is_kept_for_the_next_batches_and_journaled() -> None:
    training = Trained(fits=2)
    for number in range(3):
        training.step(batch_of(4, seed=number))
    assert training.sizes == [2] * 6
    (finding,) = training.journal("finding")
    assert finding["code"] == "gpu-out-of-memory" and finding["severity"] == "warning"
    assert finding["evidence"] == {"asked_for": 2_684_354_560, "batch_size": 4, "parts": 1}
    (action,) = training.journal("action")
    assert (action["action"], action["settings"], action["state"]) == ("shrink-micro-batch", {"parts": 2}, "done")
    assert (action["because"], action["rank"]) == ("gpu-out-of-memory", 0)


def test_the_recorded_loss_is_that_of_the_batch_and_not_of_failed_attempts() -> None:
    training = Trained(fits=3, backward=True)
    training.step(batch_of(2))
    training.optimizer.step()
    loss = training.step(batch_of(7))
    assert training.run._scope.micro_batches._losses.total() == pytest.approx(loss.item(), rel=1e-5)


def test_larger_parts_are_tried_again_after_a_while_and_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GROW_AFTER", 5)
    training = Trained(fits=4)
    tries = []
    for number in range(60):
        at = len(training.journal("finding"))
        training.step(batch_of(8, seed=number))
        if len(training.journal("finding")) > at:
            tries.append(number)
    assert tries == [0, 5, 25]  # after 5 good steps, then after 20, then not before 80
    training.fits = 99
    for number in range(60):
        training.step(batch_of(8, seed=number))
    assert training.sizes[-1] == 8


def test_an_action_from_outside_sets_the_split() -> None:
    training, whole = Trained(fits=99), Trained(fits=99)
    training.run._scope.micro_batches.shrink(3)
    training.step(batch_of(7))
    whole.step(batch_of(7))
    assert training.sizes == [3, 2, 2]
    assert_close(training.gradients, whole.gradients)


def test_the_first_part_sees_the_random_stream_that_the_whole_would_have_seen() -> None:
    training = Trained(fits=4, backward=True)
    drawn: list[float] = []
    step = training.run.step(lambda batch: (drawn.append(torch.rand(()).item()), training.loss(batch))[1])
    step(batch_of(8))
    assert len(drawn) == 3 and drawn[0] == drawn[1] != drawn[2]


def test_batch_normalisation_is_put_back_and_told_with_each_split() -> None:
    failing, right_away = Trained(fits=4, backward=True, norm=True), Trained(fits=99, norm=True)
    right_away.run._scope.micro_batches.shrink(2)
    for training in (failing, right_away):
        training.step(batch_of(8))
    for one, other in zip(failing.model.state_dict().values(), right_away.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    failing.fits = 2
    failing.step(batch_of(8))
    assert all("statistics" in entry["note"] for entry in failing.journal("action"))
    failing.fits = 1
    with pytest.raises(DoesNotFit, match="only 2 samples of a batch of 7"):  # one sample has no statistics
        failing.step(batch_of(7))


@every_case("policy", ["observe", "guard"])
def test_without_heal_it_is_recorded_and_raised(policy: str) -> None:
    training = Trained(fits=4, policy=policy)
    training.step(batch_of(4))
    with pytest.raises(torch.OutOfMemoryError):
        training.step(batch_of(8))
    (finding,) = training.journal("finding")
    assert (finding["code"], finding["severity"]) == ("gpu-out-of-memory", "critical")
    assert training.journal("action") == []


def test_a_rule_can_forbid_it() -> None:
    model = nn.Linear(2, 1)
    run = holdfast.watch(model, torch.optim.SGD(model.parameters()), policy="heal", rules={"gpu-out-of-memory": "observe"})
    calls = []

    @run.step
    def step(x: torch.Tensor) -> torch.Tensor:
        calls.append(len(x))
        raise out_of_memory()

    with pytest.raises(torch.OutOfMemoryError):
        step(torch.ones(4, 2))
    assert calls == [4]


def test_other_errors_pass_through_untouched() -> None:
    training = Trained(fits=99)
    training.step(batch_of(2))
    before = training.gradients
    broken = training.run.step(lambda batch: training.loss(batch) / 0 if batch is None else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        broken(batch_of(4))
    assert all(torch.equal(one, other) for one, other in zip(training.gradients, before, strict=True))
    with pytest.raises(UsageError, match="must return the loss"):
        training.run.step(lambda batch: batch["x"])(batch_of(4))
    with pytest.raises(UsageError, match="reduction"):
        training.run.step(reduction="median")(lambda batch: batch)
    assert training.journal("finding") == []


def test_a_library_that_got_no_work_space_counts_only_where_a_gpu_is_short() -> None:
    assert shortage_of(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")) is None
    assert shortage_of(RuntimeError("GET was unable to find an engine to execute this computation")) is None


@every_case(
    ("text", "asked_for"),
    [
        ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 23.64 GiB", 2.5 * 2**30),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 134217728 bytes. Error code 12", 2**27),
        ("MPS backend out of memory (MPS allocated: 17.54 GB). Tried to allocate 768.00 MB on private pool.", 768 * 2**20),
    ],
)
def test_the_requested_size_is_read_from_the_message(text: str, asked_for: float) -> None:
    found = shortage_of(RuntimeError(text))
    assert found is not None and found.asked_for == asked_for


def test_what_a_failed_attempt_held_is_gone_before_the_next() -> None:
    model = nn.Linear(4, 4)
    run = holdfast.watch(model, torch.optim.SGD(model.parameters()), policy="heal")
    held: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    @run.step
    def step(x: torch.Tensor) -> torch.Tensor:
        alive.append(sum(reference() is not None for reference in held))
        activations = model(x).exp()
        held.append(weakref.ref(activations))
        if len(x) > 2:
            raise out_of_memory()
        return activations.mean()

    step(torch.ones(8, 4))
    assert alive[:3] == [0, 0, 0]


def test_a_run_that_is_over_keeps_no_model_alive() -> None:
    training = Trained(fits=2)
    training.step(batch_of(4))
    model, run = weakref.ref(training.model), training.run
    run.close()
    del training
    gc.collect()
    assert model() is None
    assert run.closed
