"""`run.restore()`: where it looks, what it counts on, and what it says if it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from watched_training import Rows

import holdfast
from holdfast.errors import CannotRestore, UsageError
from holdfast.inside.control.restarted import restarted

pytestmark = pytest.mark.usefixtures("alone", "raising")


class Script:
    """A training as someone would write it."""

    def __init__(self, *, samples: int = 24, name: str | None = "mine", wide: int = 4) -> None:
        torch.manual_seed(1)
        self.model = nn.Linear(2, wide)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.loader = DataLoader(
            TensorDataset(torch.arange(2.0 * samples).view(samples, 2) / samples), batch_size=4, shuffle=True
        )
        self.run = holdfast.watch(self.model, self.optimizer, name=name)
        self.seen: list[Any] = []

    def train(self, steps: int, *, save: bool = False) -> Script:
        """Draw and update so often, and save then; a pass has six batches."""
        while True:
            for (batch,) in self.run.batches(self.loader):
                self.optimizer.zero_grad()
                self.model(batch).square().mean().backward()
                self.optimizer.step()
                self.seen.append(batch)
                if len(self.seen) == steps:
                    self.saved = self.run.save(wait=True) if save else None
                    return self

    def end(self) -> Path:
        assert self.saved is not None
        self.run.close()
        return self.saved


def saved(steps: int, **options: Any) -> Path:
    return Script(**options).train(steps, save=True).end()


def test_nothing_to_restore_is_none() -> None:
    for script in (Script(), Script(name=None)):
        assert script.run.restore() is None


def test_a_run_of_the_same_name_goes_on_and_counts_on() -> None:
    path = saved(8)
    script = Script()
    restored = script.run.restore()
    assert restored is not None and (restored.path, restored.step, restored.epoch) == (path, 8, 1)
    script.train(10)
    script.run.close()
    steps = Rows(script.run.folder / "rank-0", "steps")
    assert steps["step"] == list(range(8, 18))
    assert steps["epoch"] == [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]


def test_the_run_that_was_resumed_is_itself_resumed() -> None:
    whole = Script(name="whole").train(14).seen
    saved(3)
    for steps in (4, 5):
        script = Script()
        script.run.restore()
        script.train(steps, save=True).end()
    script = Script()
    restored = script.run.restore()
    assert restored is not None and restored.step == 12
    for expected, batch in zip(whole[12:], script.train(2).seen, strict=True):
        assert torch.equal(expected, batch)


@pytest.fixture
def started_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Have this process believe that it was started again, and told this much."""

    def believe(**told: Path) -> None:
        monkeypatch.setenv("HOLDFAST_RUN", str(tmp_path))
        monkeypatch.setenv("HOLDFAST_ATTEMPT", "2")
        for name, path in told.items():
            monkeypatch.setenv(f"HOLDFAST_{name.upper()}", str(path))
        restarted.cache_clear()

    yield believe
    monkeypatch.undo()
    restarted.cache_clear()


def test_started_again_with_no_save_of_its_own_nothing_is_restored_so_that_the_loop_can_catch_up(started_again: Any) -> None:
    """What the guard has kept has no place in the data: restored by the script, batches would be seen twice."""
    saved(8)
    started_again()
    script = Script()
    assert script.run.restore() is None


def test_started_again_it_restores_the_checkpoint_that_was_chosen_and_not_a_newer_one(started_again: Any) -> None:
    chosen = saved(8)
    saved(9)
    started_again(checkpoint=chosen)
    script = Script()
    restored = script.run.restore()
    assert restored is not None and restored.step == 8


def test_runs_of_another_name_are_left_alone() -> None:
    saved(2, name="other")
    saved(2, name="mine-too")
    script = Script()
    assert script.run.restore() is None


@every_case("what", ["checkpoint", "folder", "run"])
def test_a_checkpoint_a_folder_of_them_or_a_run_can_be_named(what: str) -> None:
    path = saved(2, name="other")
    named = {"checkpoint": path, "folder": path.parent, "run": path.parent.parent}[what]
    script = Script()
    restored = script.run.restore(named)
    assert restored is not None and restored.path == path


def test_a_path_with_nothing_in_it_is_an_error_in_words(tmp_path: Path) -> None:
    script = Script()
    with pytest.raises(CannotRestore, match="nothing to restore at"):
        script.run.restore(tmp_path / "nowhere")
    with pytest.raises(CannotRestore, match="no checkpoint in"):
        script.run.restore(tmp_path)


def test_what_was_named_and_is_gone_is_told() -> None:
    saved(1)
    run = Script().run
    with pytest.raises(UsageError, match="no longer exist"):
        run.restore()


def test_restoring_after_the_first_step_is_refused() -> None:
    with pytest.raises(UsageError, match="begun already"):
        Script().train(1).run.restore()


def test_another_model_is_refused_and_nothing_is_changed() -> None:
    saved(2)
    script = Script(wide=5)
    before = script.model.weight.detach().clone()
    with pytest.raises(CannotRestore, match=r"was \(4"):
        script.run.restore()
    assert torch.equal(script.model.weight, before)


def test_other_data_is_refused_in_the_middle_of_a_pass_and_taken_on_request() -> None:
    saved(8)
    script = Script(samples=40)
    script.run.restore()
    with pytest.raises(CannotRestore, match="samples: 24 -> 40"):
        script.run.batches(script.loader)
    again = Script(samples=40)
    restored = again.run.restore(data=False)
    assert restored is not None and restored.step == 8
    assert again.run.batches(again.loader).done == 0


def test_settings_that_differ_are_noted_as_a_change() -> None:
    script = Script()
    script.run.settings(batch=4, name="first", workers=2)
    script.train(2, save=True).end()
    again = Script()
    again.run.settings(batch=8, name="second", workers=4)
    again.run.restore()
    changes = [(row["what"], row["step"]) for row in again.run._scope.run.journal if row["kind"] == "change"]
    assert changes == [("batch 4 -> 8", 2)]  # a name and loader workers change no weight


def test_two_loaders_go_on_each_by_its_own_place() -> None:
    def draw(script: Script, other: Any) -> Iterator[torch.Tensor]:
        train = iter(script.run.batches(script.loader))
        for (batch,) in script.run.batches(other):
            yield next(train)[0]
            yield batch

    def other() -> Any:
        return DataLoader(TensorDataset(torch.arange(10)), shuffle=True, generator=torch.Generator().manual_seed(3))

    torch.manual_seed(0)
    script = Script()
    drawing = draw(script, other())
    for _ in range(6):
        next(drawing)
    assert script.run.save(wait=True) is not None
    rest = [next(drawing) for _ in range(6)]
    again = Script()
    again.run.restore()
    drawing = draw(again, other())
    assert all(torch.equal(one, two) for one, two in zip(rest, drawing, strict=False))


def test_gradients_that_wait_for_their_update_are_kept() -> None:
    script = Script().train(2)
    script.optimizer.zero_grad()
    script.model(torch.ones(1, 2)).sum().backward()
    waiting = script.model.weight.grad.clone()
    assert script.run.save(wait=True) is not None
    script.run.close()
    again = Script()
    again.run.restore()
    assert torch.equal(again.model.weight.grad, waiting)
    saved(2, name="between")  # gradients of the last update are still there, and wait for nothing
    third = Script(name="between")
    third.run.restore()
    assert third.model.weight.grad is None


def test_two_optimizers_are_told_apart_whichever_steps_first() -> None:
    def made() -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
        torch.manual_seed(1)
        models: list[nn.Module] = [nn.Linear(2, 2), nn.Linear(2, 2)]
        return models, [torch.optim.Adam(model.parameters(), lr=0.1 * (1 + n)) for n, model in enumerate(models)]

    models, optimizers = made()
    run = holdfast.watch(models, optimizers, name="two")
    for number in (1, 0, 1, 0):
        models[number](torch.randn(3, 2)).square().mean().backward()
        optimizers[number].step()
    assert run.save(wait=True) is not None
    run.close()
    fresh, others = made()
    assert holdfast.watch(fresh, others, name="two").restore() is not None
    for one, two in zip(models, fresh, strict=True):
        assert torch.equal(one.weight, two.weight)
    for one, two in zip(optimizers, others, strict=True):
        assert torch.equal(*(next(iter(optimizer.state.values()))["exp_avg"] for optimizer in (one, two)))
