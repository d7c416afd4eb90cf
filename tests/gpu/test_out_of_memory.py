"""A GPU that really runs out of memory: the training goes on, and nothing is left behind. Run with `make test-gpu`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import holdfast
from holdfast.errors import DoesNotFit
from holdfast.inside import watch as watching

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]
GIB = 1 << 30


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """This process may have 2 GiB more than it has."""
    monkeypatch.setattr(watching, "_start_side_process", lambda _run: None)
    monkeypatch.chdir(tmp_path)
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2 * GIB) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def made(dropout: float = 0.0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(1024, 1024), nn.GELU(), nn.Dropout(dropout))]
    model = nn.Sequential(*layers, nn.Linear(1024, 8)).cuda()
    return model, torch.optim.SGD(model.parameters(), lr=1e-2)


def batch_of(samples: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 1024, generator=generator), torch.randint(0, 8, (samples,), generator=generator)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, samples: int, steps: int, **how: Any) -> tuple[Any, list[int]]:
    sizes: list[int] = []
    with holdfast.watch(model, optimizer, policy="heal") as run:

        @run.step(**how)
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            sizes.append(len(x))
            with torch.autocast("cuda", torch.float16, enabled="scaler" in how):
                return nn.functional.cross_entropy(model(x.cuda()), y.cuda())

        for number in range(steps):
            step(*batch_of(samples, number))
            if "scaler" in how:
                how["scaler"].step(optimizer)
                how["scaler"].update()
            else:
                optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return run, sizes


def test_a_training_survives_a_batch_that_does_not_fit_and_leaks_nothing() -> None:
    model, optimizer = made()
    run, sizes = train(model, optimizer, 65_536, 6)  # one activation takes 256 MiB, and there are 12 of them
    findings = [entry for entry in run._scope.run.journal if entry["kind"] == "finding"]
    assert findings and {entry["code"] for entry in findings} == {"gpu-out-of-memory"}
    assert findings[0]["evidence"].keys() >= {"asked_for", "allocated", "reserved", "free", "total", "batch_size", "parts"}
    assert sizes[-1] < 65_536 and len(set(sizes[-10:])) == 1
    settled = torch.cuda.memory_allocated()
    assert settled < 0.3 * GIB, "activations of the failed attempts are still there"
    before = torch.cuda.memory_stats()["num_ooms"]
    train(model, optimizer, sizes[-1], 3)
    assert torch.cuda.memory_stats()["num_ooms"] == before
    assert torch.cuda.memory_allocated() <= settled + (1 << 20)


def test_the_gradient_is_that_of_the_whole_batch() -> None:
    model, optimizer = made()
    with holdfast.watch(model, optimizer, policy="heal") as run:
        step = run.step(lambda x, y: nn.functional.cross_entropy(model(x.cuda()), y.cuda()))
        step(*batch_of(65_536))
        assert run._scope.micro_batches.parts > 1
    ours = [parameter.grad.clone() for parameter in model.parameters()]
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.set_per_process_memory_fraction(1.0)
    x, y = batch_of(65_536)
    nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
    for one, parameter in zip(ours, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, rtol=1e-3, atol=1e-6)


def test_mixed_precision_with_a_scaler_and_accumulation_survives() -> None:
    model, optimizer = made(dropout=0.1)
    run, sizes = train(model, optimizer, 131_072, 3, scaler=torch.amp.GradScaler("cuda", init_scale=1024.0))
    assert any(entry["kind"] == "action" for entry in run._scope.run.journal)
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    assert sizes[-1] < 131_072


def test_a_sample_that_does_not_fit_is_said_with_numbers() -> None:
    model, optimizer = made()
    with holdfast.watch(model, optimizer, policy="heal") as run:
        step = run.step(lambda x: model(x.cuda()).mean() + torch.empty(3 * GIB, dtype=torch.uint8, device="cuda")[0])
        with pytest.raises(DoesNotFit, match=r"a single sample of a batch of 4 \(asked for 3[.0]* GiB, allocated .*, reserved "):
            step(torch.randn(4, 1024))


def test_a_healthy_step_waits_for_nothing() -> None:
    torch.cuda.set_per_process_memory_fraction(1.0)
    model, optimizer = made()
    x, y = (tensor.cuda() for tensor in batch_of(256))
    with holdfast.watch(model, optimizer, policy="heal") as run:
        step = run.step(lambda x, y: nn.functional.cross_entropy(model(x), y))
        for _ in range(3):
            step(x, y)
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        with contextlib.ExitStack() as stack:
            stack.callback(torch.cuda.set_sync_debug_mode, "default")
            for _ in range(20):
                step(x, y)
                step(x, y)  # accumulation
                optimizer.zero_grad(set_to_none=True)
