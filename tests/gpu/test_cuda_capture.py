"""On a GPU: nothing waits for it, nothing changes, and the numbers are right. Run with `make test-gpu`."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import holdfast
from holdfast.signals.schema import MISSING_BITS, MISSING_INT
from holdfast.signals.segment import Segment
from holdfast.signals.strings import read_strings

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


def read(folder: Path, table: str, column: str) -> np.ndarray:
    """A column of rank 0's table; missing floats are masked out as None-like NaN with a mask."""
    parts = [Segment(path).column(column) for path in sorted((folder / "rank-0" / table).iterdir())]
    return np.concatenate(parts)


def known(values: np.ndarray) -> np.ndarray:
    return values[values.view(np.uint64) != MISSING_BITS] if values.dtype.kind == "f" else values[values != MISSING_INT]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.ReLU(inplace=True), nn.LayerNorm(256), nn.Linear(256, 10)]
    return nn.Sequential(*layers).cuda()


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, *, scaler: torch.amp.GradScaler | None = None, bad: int = -1
):
    torch.manual_seed(1)
    x, y = torch.randn(steps, 32, 64, device="cuda"), torch.randint(0, 10, (steps, 32), device="cuda")
    if bad >= 0:
        x[bad, 3, 5] = math.inf
    losses, norms = [], []
    for number in range(steps):
        with torch.autocast("cuda", torch.float16 if scaler else torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x[number]), y[number])
        (scaler.scale(loss) if scaler else loss).backward()
        losses.append(loss.detach())
        if scaler is None:
            norms.append(torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in model.parameters()])))
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=True)
    return losses, norms


@pytest.mark.parametrize("fused", [True, False])
def test_losses_and_norms_are_the_true_ones_and_nothing_waits_for_the_gpu(tmp_path: Path, fused: bool) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    with holdfast.watch(model, optimizer, folder=tmp_path) as run:
        train(model, optimizer, 12)  # the kernel is compiled and buffers are pinned in the first steps
        torch.cuda.set_sync_debug_mode("error")
        try:
            losses, norms = train(model, optimizer, 40)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    np.testing.assert_allclose(read(run.folder, "steps", "loss")[12:], torch.stack(losses).cpu(), rtol=1e-4)
    np.testing.assert_allclose(read(run.folder, "steps", "grad_norm")[12:], torch.stack(norms).cpu(), rtol=1e-4)
    assert (read(run.folder, "steps", "step") == np.arange(52)).all()
    assert (read(run.folder, "steps", "non_finite") == 0).all()
    assert known(read(run.folder, "steps", "gpu_allocated")).min() > 0
    assert known(read(run.folder, "steps", "update_ratio")).min() > 0


@pytest.mark.parametrize("changes", ["a hook clears them", "nesterov adds to them"])
def test_norms_are_those_before_the_update_where_it_changes_the_gradients(tmp_path: Path, changes: str) -> None:
    model = make_model()
    if changes == "a hook clears them":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        optimizer.register_step_post_hook(lambda cleared, _args, _kwargs: cleared.zero_grad(set_to_none=False))
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True, foreach=True)
    with holdfast.watch(model, optimizer, folder=tmp_path) as run:
        _, norms = train(model, optimizer, 40)
    np.testing.assert_allclose(read(run.folder, "steps", "grad_norm"), torch.stack(norms).cpu(), rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_each_gradient_kind_is_read_right_by_the_kernel(dtype: torch.dtype) -> None:
    from holdfast.inside.gradients.cuda import GradientKernel, can_be_read_by_kernel

    torch.manual_seed(0)
    tensors = [torch.randn(n, device="cuda").to(dtype) for n in (1, 3, 1000, 65536, 65537, 1_000_003)]
    tensors.append(torch.randn(4, 8, 5, 5, device="cuda").to(dtype).to(memory_format=torch.channels_last))
    tensors.append(torch.randn(4097, device="cuda").to(dtype)[1:])  # not aligned
    tensors += [torch.randn(17, device="cuda").to(dtype) for _ in range(1000)]  # more than one launch takes
    tensors[2][7], tensors[5][999_999], tensors[900][3] = math.nan, -math.inf, math.nan
    assert can_be_read_by_kernel(tensors)
    kernel = GradientKernel(tensors, torch.device("cuda", 0))
    assert kernel.fits(tensors)
    kernel.read()
    squares, largest, bad = kernel.out.cpu().double().reshape(3, -1)
    for number, tensor in enumerate(tensors):
        values = tensor.double().flatten().cpu()
        finite = values[torch.isfinite(values)]
        assert int(bad[number]) == values.numel() - finite.numel()
        assert largest[number] == pytest.approx(finite.abs().max().item(), rel=1e-3)
        if not bad[number]:
            assert squares[number] == pytest.approx(finite.square().sum().item(), rel=1e-3)


def test_an_expanded_gradient_is_never_read_by_address() -> None:
    from holdfast.inside.gradients.cuda import can_be_read_by_kernel

    assert not can_be_read_by_kernel([torch.ones(1, device="cuda").expand(1_000_000)])


def test_an_infinite_input_shows_as_bad_gradients_with_their_names(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with holdfast.watch(model, optimizer, folder=tmp_path) as run:
        train(model, optimizer, 20, bad=15)
    bad = read(run.folder, "steps", "non_finite")
    assert (bad[:15] == 0).all() and bad[15] > 0
    strings = read_strings(run.folder / "rank-0")
    rows = (read(run.folder, "parameters", "step") == 15) & (read(run.folder, "parameters", "non_finite") > 0)
    assert "0.weight" in {strings[code] for code in read(run.folder, "parameters", "name")[rows]}


@pytest.mark.parametrize("fused", [True, False])
def test_a_step_that_the_scaler_skips_is_recorded_as_skipped_with_unscaled_numbers(tmp_path: Path, fused: bool) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    with holdfast.watch(model, optimizer, folder=tmp_path) as run:
        losses, _ = train(model, optimizer, 20, scaler=scaler, bad=10)
    skipped = read(run.folder, "steps", "skipped")
    assert skipped.tolist() == [int(number == 10) for number in range(20)]
    good = [number for number in range(20) if number != 10]
    np.testing.assert_allclose(read(run.folder, "steps", "loss")[good], torch.stack(losses).float().cpu()[good], rtol=1e-3)
    assert read(run.folder, "steps", "scale")[:10].tolist() == [1024.0] * 10
    assert read(run.folder, "steps", "scale")[12] == 512.0
    assert read(run.folder, "steps", "grad_norm")[good].max() < 50  # scaled, they would be hundreds of times that


def test_weights_are_bit_equal_with_and_without_holdfast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        results = []
        for watched in (False, True):
            model = make_model()
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
            if watched:
                with holdfast.watch(model, optimizer, folder=tmp_path, budget=1.0):
                    train(model, optimizer, 60)
            else:
                train(model, optimizer, 60)
            results.append([p.detach().clone() for p in model.parameters()] + [torch.cuda.get_rng_state(), torch.get_rng_state()])
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


def test_module_times_are_device_times_with_memory(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    with holdfast.watch(model, optimizer, folder=tmp_path) as run:
        train(model, optimizer, 40)
    strings = read_strings(run.folder / "rank-0")
    stages = {
        (strings[m], strings[s])
        for m, s in zip(read(run.folder, "modules", "module"), read(run.folder, "modules", "stage"), strict=True)
    }
    assert {("0", "forward"), ("0", "backward"), ("5", "forward"), ("5", "backward"), ("(model)", "forward")} <= stages
    assert known(read(run.folder, "modules", "seconds")).min() > 0
    assert known(read(run.folder, "modules", "gpu_allocated")).min() > 0


def test_a_validation_loss_on_the_gpu_is_recorded_without_waiting(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    x, y = torch.randn(8, 64, device="cuda"), torch.randint(0, 10, (8,), device="cuda")
    with holdfast.watch(model, optimizer, folder=tmp_path) as run:
        train(model, optimizer, 3)
        model.eval()
        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.no_grad():
                expected = nn.functional.cross_entropy(model(x), y)
            model.train()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        train(model, optimizer, 2)
    np.testing.assert_allclose(read(run.folder, "evaluations", "value"), [expected.item()], rtol=1e-5)


def test_clipping_gives_its_own_norm_to_the_record(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    norms = []
    with holdfast.watch(model, optimizer, folder=tmp_path) as run:
        for number in range(15):
            torch.manual_seed(number)
            nn.functional.mse_loss(model(torch.randn(16, 64, device="cuda")), torch.zeros(16, 10, device="cuda")).backward()
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
            optimizer.step()
            optimizer.zero_grad()
    np.testing.assert_allclose(read(run.folder, "steps", "grad_norm"), torch.stack(norms).cpu(), rtol=1e-4)
    assert (read(run.folder, "steps", "clip_norm") == 0.1).all()
