"""A loop that knows nothing of resuming is brought to where it was, and ends as it would have."""

from __future__ import annotations

import gc
import io
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast
from holdfast.checkpoints.manifest import kept_in
from holdfast.inside.arm import armed
from holdfast.inside.control.restarted import restarted
from holdfast.signals.run_folder import RunFolder

STEPS, KEPT_AT = 40, 25
Between = Callable[[int], None]


@pytest.fixture
def started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], None]]:
    """Have this process believe that it was started again, with what the first attempt has kept."""

    def believe() -> None:
        gc.collect()  # optimizers of other tests would be waited for
        monkeypatch.setenv("HOLDFAST_RUN", str(tmp_path))
        monkeypatch.setenv("HOLDFAST_ATTEMPT", "2")
        kept = tmp_path / "second" / "checkpoints"
        monkeypatch.setenv("HOLDFAST_KEPT", str(kept / f"step-{KEPT_AT:06d}"))
        monkeypatch.setenv("HOLDFAST_KEPT_STEP", str(KEPT_AT))
        monkeypatch.setenv("HOLDFAST_KEPT_IN", str(kept))
        restarted.cache_clear()

    yield believe
    monkeypatch.undo()
    restarted.cache_clear()


@contextmanager
def watched_again(folder: Path) -> Iterator[holdfast.Run]:
    """Watch again, with what the first attempt has kept."""
    with holdfast.watch(folder=folder, name="second", policy="heal") as run:
        shutil.copytree(folder / "kept", run.folder / "checkpoints")
        yield run


def one_optimizer(between: Between = lambda _step: None) -> list[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=STEPS)  # fails if it is advanced further
    for step in range(STEPS):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        between(step + 1)
        if step + 1 < STEPS:
            schedule.step()
    return [*model.state_dict().values(), *schedule.get_last_lr()]


def two_optimizers(between: Between = lambda _step: None) -> list[Any]:
    torch.manual_seed(0)
    large, small = nn.Linear(4, 16), nn.Linear(4, 4)
    first, second = torch.optim.Adam(large.parameters(), lr=0.01), torch.optim.SGD(small.parameters(), lr=0.01, momentum=0.9)
    for step in range(STEPS):
        x = torch.randn(8, 4)
        first.zero_grad()
        large(small(x).detach()).pow(2).mean().backward()
        first.step()
        between(step + 1)
        second.zero_grad()
        large(small(x)).pow(2).mean().backward()
        second.step()
    return [*large.state_dict().values(), *small.state_dict().values()]


def two_phases(between: Between = lambda _step: None) -> list[Any]:
    """A second optimizer takes the weights over, as in fine-tuning."""
    torch.manual_seed(0)
    model, step = nn.Linear(4, 1), 0
    for steps, lr in ((15, 0.1), (STEPS - 15, 0.01)):
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            optimizer.step()
            step += 1
            between(step)
    return [*model.state_dict().values()]


class InAnyOrder:
    """An optimizer for each parameter, made with its first update, as Pyro does; all but the first in another order each time."""

    def __init__(self) -> None:
        self.backwards = False

    def __call__(self, between: Between = lambda _step: None) -> list[Any]:
        torch.manual_seed(0)
        model = nn.ParameterList(torch.randn(4) for _ in range(4))
        first, *others = list(model)
        order = [first, *(others[::-1] if self.backwards else others)]
        self.backwards = not self.backwards
        optimizers: dict[torch.Tensor, torch.optim.Optimizer] = {}
        for step in range(STEPS):
            (torch.stack(list(model)) * torch.randn(4, 4)).pow(2).sum().backward()
            for parameter in order:
                if parameter not in optimizers:
                    optimizers[parameter] = torch.optim.Adam([parameter], lr=0.01)
                optimizers[parameter].step()
                optimizers[parameter].zero_grad()
                if parameter is first:
                    between(step + 1)
        return list(model)


class Counted(nn.Linear):
    """Counts its forward passes, out of sight: a plain counter would be a reason to run them."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.passes = list[None]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes.append(None)
        return super().forward(x)


class Annealed(nn.Linear):
    """Its output depends on how often it was called, which no checkpoint holds."""

    calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x) / self.calls


class Split(nn.Module):
    """Has no forward pass of its own, as a LightningModule may not: the loop calls its two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(Counted(4, 8), nn.BatchNorm1d(8)), nn.Linear(8, 1)


def annealed(between: Between = lambda _step: None) -> list[Any]:
    torch.manual_seed(0)
    model = Annealed(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        between(step + 1)
    return [*model.state_dict().values(), model.calls]


def with_a_loader(between: Between = lambda _step: None, *, split: bool = False, seen: list[Any] | None = None) -> list[Any]:
    """Shuffled epochs of eight batches, the last one smaller, an evaluation after each, labels changed in place."""
    torch.manual_seed(0)
    model: Any = Split() if split else nn.Sequential(Counted(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    predict = (lambda x: model.head(model.body(x))) if split else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer.load_state_dict(optimizer.state_dict())  # as Accelerate does with every optimizer: the script does not resume
    data = TensorDataset(torch.randn(60, 4), torch.arange(60.0))
    step, metrics = 0, []
    for _ in range(STEPS // 8):
        model.train()
        for x, y in DataLoader(data, batch_size=8, shuffle=True):
            y.div_(60)
            optimizer.zero_grad()
            (predict(x)[:, 0] - y).pow(2).mean().backward()
            optimizer.step()
            step += 1
            between(step)
        model.eval()
        with torch.no_grad():
            metrics.append(float(predict(data.tensors[0]).mean()))
    if seen is not None:
        seen += [len((model.body[0] if split else model[0]).passes), metrics]
    return [*model.state_dict().values(), *metrics[-1:]]


def evaluated_with_gradients(between: Between = lambda _step: None) -> list[Any]:
    """As Stanza does: no `no_grad` about the evaluation, and each of its batches counts. On training data, too."""
    torch.manual_seed(0)
    model, step = nn.Linear(4, 1), 0
    data, held_out = TensorDataset(torch.randn(60, 4)), TensorDataset(torch.randn(20, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS // 8):
        model.train()
        for (x,) in DataLoader(data, batch_size=8, shuffle=True):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
            step += 1
            between(step)
        model.eval()
        for evaluated in (held_out, data):
            assert torch.equal(torch.cat([x for (x,) in DataLoader(evaluated, batch_size=8)]), evaluated.tensors[0])
    return [*model.state_dict().values()]


class Noted(nn.Linear):
    """Notes something at each pass that the loop needs, as Opacus notes the gradient of each sample."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.noted = list[torch.Tensor]()
        self.register_full_backward_hook(lambda _module, _into, out: self.noted.append(out[0]))


def smaller_first(between: Between = lambda _step: None) -> list[Any]:
    """As a GAN does: the optimizer of the smaller model steps first, and is taken for the main one until the other comes."""
    torch.manual_seed(0)
    small, large = nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))
    first, second = (torch.optim.Adam(model.parameters(), lr=0.01) for model in (small, large))
    for step in range(STEPS):
        noise = torch.randn(8, 4)
        first.zero_grad()
        (small(large(noise).detach()).sigmoid().mean() - small(noise).sigmoid().mean()).backward()
        first.step()
        second.zero_grad()
        (-small(large(noise)).sigmoid().mean()).backward()
        second.step()
        between(step + 1)
    return [*small.state_dict().values(), *large.state_dict().values()]


def with_hooks(between: Between = lambda _step: None) -> list[Any]:
    torch.manual_seed(0)
    model = Noted(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        assert model.noted.pop().shape == (8, 1)
        optimizer.step()
        between(step + 1)
    return [*model.state_dict().values()]


def drawn_ahead(between: Between = lambda _step: None) -> list[Any]:
    """As Accelerate does: the next batch is drawn before the step with this one."""
    torch.manual_seed(0)
    model, data = nn.Linear(4, 1), TensorDataset(torch.randn(8 * STEPS, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batches = iter(DataLoader(data, batch_size=8, shuffle=True))
    batch = next(batches)
    for step in range(STEPS):
        this, batch = batch, next(batches, None)
        optimizer.zero_grad()
        model(this[0]).pow(2).mean().backward()
        optimizer.step()
        between(step + 1)
    return [*model.state_dict().values()]


def keep(folder: Path, step: int) -> None:
    """What the guard does every few minutes."""
    if step == KEPT_AT:
        _keep_now(folder, step)


def keep_twice_and_die(folder: Path, step: int) -> None:
    """Two are kept; the kill comes some steps later, and the newer one turns out to be damaged."""
    if step in (KEPT_AT - 10, KEPT_AT):
        _keep_now(folder, step)
    if step == KEPT_AT + 8:
        weights = kept_in(folder)[-1].path / "weights.safetensors"
        weights.write_bytes(weights.read_bytes()[:-8])
        raise InterruptedError


def _keep_now(folder: Path, step: int) -> None:
    snapshots = armed().runtime.trainings[-1].control.snapshots  # type: ignore[union-attr]
    assert snapshots.take(step) and snapshots.save(folder) is not None
    deadline = time.monotonic() + 600
    while not any(kept.step == step for kept in kept_in(folder)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


SPLIT = partial(with_a_loader, split=True)
LOOPS = [
    one_optimizer,
    two_optimizers,
    smaller_first,
    two_phases,
    annealed,
    with_hooks,
    evaluated_with_gradients,
    with_a_loader,
    SPLIT,
    drawn_ahead,
    InAnyOrder(),
]


@pytest.mark.parametrize("loop", LOOPS)
def test_it_ends_bit_for_bit_as_without_an_interruption(
    loop: Callable[..., list[Any]], tmp_path: Path, started_again: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = loop()
    with holdfast.watch(folder=tmp_path, name="first", policy="heal"):
        loop(lambda step: keep(tmp_path / "kept", step))
    started_again()
    with watched_again(tmp_path):
        found = loop()
        training = armed().runtime.trainings[-1]
        assert training.step == STEPS and armed().runtime.fast_forwarding is None
    assert f"training continues at step {KEPT_AT}" in capfd.readouterr().err
    assert all(torch.equal(torch.as_tensor(one), torch.as_tensor(other)) for one, other in zip(wanted, found, strict=True))


@pytest.mark.parametrize("split", [False, True])
def test_steps_that_were_done_cost_no_forward_pass_and_evaluations_are_those_of_the_saved_state(
    tmp_path: Path, started_again: Callable[[], None], split: bool
) -> None:
    first, second = list[Any](), list[Any]()
    with holdfast.watch(folder=tmp_path, name="first", policy="heal"):
        with_a_loader(lambda step: keep(tmp_path / "kept", step), split=split, seen=first)
    started_again()
    with watched_again(tmp_path):
        with_a_loader(split=split, seen=second)
    assert first[0] == STEPS + 5
    skipped = KEPT_AT - 1 + 2  # steps, and two of the three evaluations on the way
    assert second[0] <= first[0] - skipped + 3 + split, (
        "one for each batch size, and what shows that the whole model is not called"
    )
    assert len(set(second[1][:3])) == 1 and second[1][3:] == first[1][3:]


@pytest.mark.parametrize("moves", [False, True])
def test_the_best_checkpoint_of_the_earlier_attempt_is_not_lost(
    tmp_path: Path, started_again: Callable[[], None], moves: bool
) -> None:
    best, last = tmp_path / "best.pt", tmp_path / "last.pt"

    def save(path: Path, step: int) -> None:
        torch.save({"model": {"weight": torch.ones(3)}, "step": step}, path.with_suffix(".tmp") if moves else path)
        if moves:
            path.with_suffix(".tmp").replace(path)

    def first_attempt(step: int) -> None:
        keep(tmp_path / "kept", step)
        save(last, step)
        if step == 10:
            save(best, step)  # the evaluations after it were worse

    def second_attempt(step: int) -> None:
        save(last, step)
        saved_at = torch.load(best)["step"]
        assert saved_at == (10 if step <= KEPT_AT + 3 else KEPT_AT + 3), "nothing is replaced while the script is fast-forwarded"
        if step in (1, 20, KEPT_AT + 3):  # it has forgotten how good its best one was
            save(best, step)

    with holdfast.watch(folder=tmp_path, name="first", policy="heal"):
        one_optimizer(first_attempt)
    started_again()
    with watched_again(tmp_path) as run:
        RunFolder(run.folder).journal.write(
            "checkpoint", event="saved", path=str(last)
        )  # a restart has the journal of the attempt before
        one_optimizer(second_attempt)
    assert torch.load(tmp_path / "best.attempt-1.pt")["step"] == 10
    assert torch.load(best)["step"] == KEPT_AT + 3 and torch.load(last)["step"] == STEPS
    assert sorted(path.name for path in tmp_path.glob("*.*")) == ["best.attempt-1.pt", "best.pt", "last.pt"]


def test_files_that_the_script_opens_itself_and_buffers_that_it_writes_stay_whole(
    tmp_path: Path, started_again: Callable[[], None]
) -> None:
    state = {"model": {"weight": torch.ones(3)}}

    def save(step: int) -> None:
        with (tmp_path / "opened.pt").open("wb") as file:
            torch.save(state, file)
        _atomic_save(state, tmp_path / "written.ckpt")
        assert torch.load(tmp_path / "opened.pt")["model"] and torch.load(tmp_path / "written.ckpt")["model"], step

    with holdfast.watch(folder=tmp_path, name="first", policy="heal"):
        one_optimizer(lambda step: keep(tmp_path / "kept", step) or save(step))
    started_again()
    with watched_again(tmp_path):
        one_optimizer(save)


def _atomic_save(checkpoint: Any, filepath: Path) -> None:
    """As Lightning saves: into memory, to a file beside it, and over the old one in one go."""
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    beside = filepath.with_suffix(".part")
    beside.write_bytes(buffer.getvalue())
    beside.replace(filepath)


def test_killed_between_two_saves_with_the_newer_one_damaged_it_catches_up_from_the_one_before(
    tmp_path: Path, started_again: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = one_optimizer()
    with pytest.raises(InterruptedError), holdfast.watch(folder=tmp_path, name="first", policy="heal"):
        one_optimizer(lambda step: keep_twice_and_die(tmp_path / "kept", step))
    started_again()
    with watched_again(tmp_path):
        found = one_optimizer()
        assert armed().runtime.trainings[-1].step == STEPS
    assert f"training continues at step {KEPT_AT - 10}" in capsys.readouterr().err
    assert all(torch.equal(torch.as_tensor(one), torch.as_tensor(other)) for one, other in zip(wanted, found, strict=True))


def test_what_was_kept_of_another_model_is_left_alone(
    tmp_path: Path, started_again: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = one_optimizer()
    with holdfast.watch(folder=tmp_path, name="first", policy="heal"):
        two_optimizers(lambda step: keep(tmp_path / "kept", step))
    started_again()
    with watched_again(tmp_path):
        found = one_optimizer()
        assert armed().runtime.trainings[-1].step == STEPS
    assert "starting from scratch" in capsys.readouterr().err
    assert all(torch.equal(torch.as_tensor(one), torch.as_tensor(other)) for one, other in zip(wanted, found, strict=True))
