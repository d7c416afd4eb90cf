"""Actions that were decided outside are done between two steps, and the journal says what was done or why not."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case
from safetensors.torch import load_file
from torch import nn

from holdfast.checkpoints.manifest import kept_in, list_checkpoints
from holdfast.checkpoints.write import best_checkpoint
from holdfast.inside.arm import arm_from_environment, armed
from holdfast.inside.control.control import seconds_between_saves
from holdfast.signals.action_queue import ActionQueue, post
from holdfast.signals.actions import Action
from holdfast.signals.run_folder import RunFolder
from holdfast.state.snapshots import Snapshots


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunFolder]:
    folder = RunFolder.create(tmp_path, "run")
    for name, value in {"RUN": str(folder.path), "DEBUG": "raise", "POLICY": "heal", "RULES": "", "SAMPLING": ""}.items():
        monkeypatch.setenv(f"HOLDFAST_{name}", value)
    monkeypatch.delenv("HOLDFAST_SUPERVISOR", raising=False)
    monkeypatch.setattr("holdfast.state.snapshots.affordable_interval", lambda *_, at_least, **__: at_least)
    monkeypatch.setattr("holdfast.inside.control.control._FIRST_SAVE", 3600.0)  # no save that a test has not asked for
    monkeypatch.setattr("holdfast.inside.control.control.seconds_between_saves", lambda *_: 3600.0)
    gc.collect()
    arm_from_environment()
    yield folder
    armed().close_all()


class Loop:
    """A small training of which every step is remembered."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.before: list[torch.Tensor] = []

    def train(self, steps: int, then: Callable[[int], None] = lambda _: None) -> None:
        for _ in range(steps):
            self.before.append(self.model.weight.detach().clone())
            self.optimizer.zero_grad()
            self.model(torch.randn(8, 4)).square().mean().backward()
            self.optimizer.step()
            wait_for_memory()
            then(len(self.before))


def wait_for_memory() -> None:
    """Until a thread has allocated and checked the copies: on a busy machine these steps would all be made before."""
    trainings = armed().runtime.trainings
    while trainings and trainings[0].control is not None and is_busy(trainings[0].control.snapshots):
        time.sleep(0.001)


def is_busy(snapshots: Snapshots) -> bool:
    return snapshots._allocating or any(block.users for block in snapshots._blocks)


def answers(run: RunFolder) -> list[dict[str, Any]]:
    return [entry for entry in run.journal if entry["kind"] == "action"]


def wait_for_snapshots(run: RunFolder) -> list[int]:
    control = armed().runtime.trainings[0].control
    assert control is not None
    assert control.snapshots.at_or_before(10**9) is not None
    return control.snapshots.steps()


def test_a_roll_back_restores_the_state_and_lowers_the_rate(run: RunFolder) -> None:
    loop = Loop()
    loop.train(60)
    assert 50 in wait_for_snapshots(run)
    post(run.path, 1, 0, Action("roll-back", step=60, because="loss-divergence", settings={"to": 55, "lr_factor": 0.5}))
    loop.train(1)
    assert loop.model.weight.equal(loop.before[50])
    seen: list[float] = []
    loop.optimizer.register_step_pre_hook(lambda o, *_: seen.append(o.param_groups[0]["lr"]))
    loop.train(1)
    moved = (loop.model.weight - loop.before[-1]) / loop.model.weight.grad
    assert moved.mean().item() == pytest.approx(-0.05, rel=1e-4)
    assert loop.optimizer.param_groups[0]["lr"] == 0.1, "the script finds the rate that it set"
    (answer,) = answers(run)
    assert (answer["state"], answer["number"], answer["at"]) == ("done", 1, 61)
    assert "step 50" in answer["detail"]


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_rate_that_jumps_again_after_a_roll_back_is_held_and_one_that_climbs_is_not(run: RunFolder, as_tensor: bool) -> None:
    loop = Loop()
    (group,) = loop.optimizer.param_groups
    if as_tensor:
        group["lr"], group["capturable"] = torch.tensor(0.1), True
    loop.train(60)
    wait_for_snapshots(run)
    settings = {"to": 55, "lr_factor": 1.0, "lr_limit": 0.1}
    post(run.path, 1, 0, Action("roll-back", step=60, because="loss-divergence", settings=settings))
    loop.train(1)

    def made(rate: float) -> float:
        """One update with this rate as the script sets it: the rate that was used."""
        group["lr"] = torch.tensor(rate) if as_tensor else rate
        loop.train(1)
        assert float(group["lr"]) == pytest.approx(rate), "the script finds the rate that it set"
        return -((loop.model.weight - loop.before[-1]) / loop.model.weight.grad).mean().item()

    assert [made(rate) for rate in (10.0, 0.05, 9.0)] == pytest.approx([0.1, 0.05, 0.1], rel=1e-3)
    assert [made(rate) for rate in (0.12, 0.15, 0.2, 20.0)] == pytest.approx([0.12, 0.15, 0.2, 0.2], rel=1e-3)
    if not as_tensor:  # nobody reads a rate on the device only to see that it did not jump
        assert [made(rate) for rate in (16.0, 10.0, 4.0)] == pytest.approx([0.16, 0.1, 0.04], rel=1e-3), "its schedule goes on"
        assert {made(0.1) for _ in range(50)} and made(0.5) == pytest.approx(0.5, rel=1e-3), "it jumped once, long ago"


def test_a_rate_that_had_jumped_before_the_snapshot_was_taken_is_held_too(run: RunFolder) -> None:
    loop = Loop()
    (group,) = loop.optimizer.param_groups

    def jump(*_: Any) -> None:
        group["lr"] = 10.0 if len(loop.before) == 20 else group["lr"]

    loop.optimizer.register_step_post_hook(jump)  # it runs before Holdfast's own, so the state of step 20 has the new rate
    loop.train(22)
    assert 20 in wait_for_snapshots(run)
    settings = {"to": 20, "before": 20, "lr_factor": 1.0, "lr_limit": 0.1}
    post(run.path, 1, 0, Action("roll-back", step=22, because="loss-divergence", settings=settings))
    loop.train(1)
    assert loop.model.weight.equal(loop.before[20]) and group["lr"] == 10.0
    for _ in range(60):
        loop.train(1)
        made = -((loop.model.weight - loop.before[-1]) / loop.model.weight.grad).mean().item()
        assert made == pytest.approx(0.1, rel=1e-2)


def test_a_rate_that_was_cut_for_a_while_climbs_back_evenly_and_the_next_cut_stays(run: RunFolder) -> None:
    loop = Loop()
    loop.train(60)
    wait_for_snapshots(run)
    settings = {"to": 55, "lr_factor": 0.25, "regain_steps": 4}
    post(run.path, 1, 0, Action("roll-back", step=60, because="loss-divergence", settings=settings))
    loop.train(1)

    def made() -> float:
        loop.train(1)
        return -((loop.model.weight - loop.before[-1]) / loop.model.weight.grad).mean().item()

    climb = [0.025 * 4 ** (n / 4) for n in range(1, 4)]
    assert [made() for _ in range(10)] == pytest.approx([*[0.025] * 5, *climb, 0.1, 0.1], rel=1e-2)
    post(run.path, 2, 0, Action("lower-lr", step=71, because="loss-divergence", settings={"factor": 0.5}))
    loop.train(1)
    assert [made() for _ in range(10)] == pytest.approx([0.05] * 10, rel=1e-2)


def test_a_roll_back_to_where_nothing_is_kept_is_refused_in_words(run: RunFolder) -> None:
    loop = Loop()
    loop.train(20)
    post(run.path, 1, 0, Action("roll-back", step=20, because="loss-divergence", settings={"to": 0}))
    before = loop.model.weight.detach().clone()
    loop.train(1)
    (answer,) = answers(run)
    assert answer["state"] == "refused" and "no clean snapshot" in answer["detail"]
    assert not loop.model.weight.equal(before)


def test_a_checkpoint_is_saved_and_rolled_back_to_from_disk(run: RunFolder) -> None:
    loop = Loop()
    loop.train(60)
    wait_for_snapshots(run)
    post(run.path, 1, 0, Action("save-checkpoint", step=60, because="loss-spike", settings={"best": 0.5}))
    loop.train(1)
    saved = loop.model.weight.detach().clone()
    control = armed().runtime.trainings[0].control
    assert control is not None
    control._helper.close(60.0)  # it writes behind the training
    (path,) = list_checkpoints(run.path / "checkpoints")
    assert path.name == "step-000061" and best_checkpoint(path.parent) == path
    assert torch.equal(load_file(path / "weights.safetensors")["weight"], saved)
    loop.train(20)
    post(run.path, 2, 0, Action("roll-back", step=81, because="loss-divergence", settings={"to": "disk", "lr_factor": 0.5}))
    loop.train(1)
    assert loop.model.weight.equal(saved) and [answer["state"] for answer in answers(run)] == ["done", "done"]
    assert "step 61" in answers(run)[-1]["detail"]
    told = [entry for entry in run.journal if entry["kind"] == "checkpoint"]
    assert [(row["event"], row["by"], row["step"]) for row in told] == [("saved", "guard", 61)]


@every_case(("age", "size", "seconds"), [(0, 1, 0.5), (3, 1, 1.5), (10, 1, 2), (700, 1 << 20, 70), (10, 2 << 30, 128)])
def test_a_crash_costs_a_tenth_of_the_run_and_saves_write_little(age: float, size: int, seconds: float) -> None:
    assert seconds_between_saves(age, size) == pytest.approx(seconds)


def test_a_snapshot_goes_to_disk_by_itself(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.inside.control.control.seconds_between_saves", lambda *_: 0.0)
    loop = Loop()
    loop.train(60)
    wait_for_snapshots(run)
    control = armed().runtime.trainings[0].control
    assert control is not None
    control._helper.close(60.0)  # it writes behind the training
    assert [kept.manifest["made_by"] for kept in kept_in(run.path / "checkpoints")][:1] == ["guard"]


def test_a_roll_back_to_disk_takes_a_state_from_before_the_trouble_where_there_is_one(run: RunFolder) -> None:
    loop = Loop()
    loop.train(3)
    steps = []
    for number in (1, 2):
        loop.train(20)
        post(run.path, number, 0, Action("save-checkpoint", step=0, because="metric-plateau", settings={}))
        loop.train(1)
        control = armed().runtime.trainings[0].control
        assert control is not None
        written = threading.Event()
        control._helper.submit(written.set)  # it comes after the save
        assert written.wait(60.0)
        steps.append(kept_in(run.path / "checkpoints")[-1].step)
    for number, (before, expected) in enumerate([(steps[1] - 1, steps[0]), (0, steps[1])], 3):
        settings = {"to": "disk", "lr_factor": 1.0, "before": before}
        post(run.path, number, 0, Action("roll-back", step=0, because="loss-divergence", settings=settings))
        loop.train(1)
        assert answers(run)[-1]["detail"].startswith(f"restored the state of step {expected};")


@pytest.mark.parametrize(("before", "newer"), [(70, True), (60, False), (None, False)])
def test_a_checkpoint_that_is_newer_than_the_snapshot_is_rolled_back_to(run: RunFolder, before: int | None, newer: bool) -> None:
    loop = Loop()
    loop.train(60)
    wait_for_snapshots(run)
    post(run.path, 1, 0, Action("save-checkpoint", step=60, because="metric-plateau", settings={}))
    loop.train(1)
    control = armed().runtime.trainings[0].control
    assert control is not None
    control._helper.close(60.0)  # it writes behind the training
    expected = 61 if newer else max(step for step in wait_for_snapshots(run) if step <= 55)
    settings = {"to": 55, "lr_factor": 1.0} | ({"before": before} if before is not None else {})
    post(run.path, 2, 0, Action("roll-back", step=61, because="loss-divergence", settings=settings))
    loop.train(1)
    assert loop.model.weight.equal(loop.before[expected])
    assert (answers(run)[-1]["to"], answers(run)[-1]["settings"]["to"]) == (expected, expected)


def test_the_next_training_of_a_run_does_not_do_what_was_posted_for_the_one_before(run: RunFolder) -> None:
    first = Loop()
    first.train(20)
    post(run.path, 1, 0, Action("lower-lr", step=20, because="metric-decline", settings={"factor": 0.5}))
    first.train(2)
    post(run.path, 2, 0, Action("roll-back", step=22, because="loss-divergence", settings={"to": 20}))
    second = Loop()
    second.train(20)
    assert len(armed().runtime.trainings) == 2
    moved = (second.model.weight - second.before[-1]) / second.model.weight.grad
    assert moved.mean().item() == pytest.approx(-0.1, rel=1e-4)
    assert [(answer["number"], answer["state"]) for answer in answers(run)] == [(1, "done")]
    post(run.path, 3, 0, Action("lower-lr", step=20, because="metric-decline", settings={"factor": 0.5}))
    second.train(1)
    assert [answer["number"] for answer in answers(run)] == [1, 3]


def test_an_answer_that_the_journal_did_not_take_is_told_later(run: RunFolder) -> None:
    loop = Loop()
    loop.train(3)
    run.journal.path.unlink(missing_ok=True)
    run.journal.path.mkdir()
    post(run.path, 1, 0, Action("lower-lr", step=3, because="metric-decline", settings={"factor": 0.5}))
    loop.train(3)
    run.journal.path.rmdir()
    armed().close_all()
    assert [(answer["number"], answer["state"], answer["at"]) for answer in answers(run)] == [(1, "done", 4)]


def test_an_action_for_a_later_step_waits_for_it(run: RunFolder) -> None:
    loop = Loop()
    loop.train(5)
    post(run.path, 1, 9, Action("lower-lr", step=5, because="metric-decline", settings={"factor": 0.8}))
    loop.train(10)
    (answer,) = answers(run)
    assert answer["at"] == 9


def test_clipping_holds_for_its_steps_and_no_longer(run: RunFolder) -> None:
    loop = Loop()
    loop.train(3)
    post(run.path, 1, 0, Action("clip", step=3, because="gradient-explosion", settings={"max_norm": 1e-3, "steps": 5}))
    norms: list[float] = []
    loop.train(12, lambda _: norms.append((loop.model.weight - loop.before[-1]).norm().item() / 0.1))
    assert [norm <= 1.001e-3 for norm in norms[1:6]] == [True] * 5
    assert norms[7] > 1e-3


def test_a_stop_ends_the_script_with_its_reason(run: RunFolder, capfd: pytest.CaptureFixture[str]) -> None:
    loop = Loop()
    loop.train(3)
    post(run.path, 1, 0, Action("stop", step=3, because="metric-collapse", settings={"why": "nothing helped", "code": 3}))
    with pytest.raises(SystemExit) as ended:
        loop.train(3)
    assert ended.value.code == 3
    assert "nothing helped" in capfd.readouterr().err
    assert answers(run)[-1]["state"] == "done"


def test_what_cannot_be_done_is_refused_and_training_goes_on(run: RunFolder) -> None:
    loop = Loop()
    loop.train(3)
    post(run.path, 1, 0, Action("shrink-micro-batch", step=3, because="gpu-out-of-memory", settings={"parts": 2}))
    post(run.path, 2, 0, Action("sing", step=3, because="joy"))
    post(run.path, 3, 0, Action("lower-lr", step=20, because="metric-decline", settings={"factor": "half"}))
    loop.train(3)
    assert [(answer["number"], answer["state"]) for answer in answers(run)] == [(n, "refused") for n in (1, 2, 3)]


def test_a_torn_or_foreign_line_in_the_action_queue_is_skipped(tmp_path: Path) -> None:
    queue = ActionQueue(tmp_path)
    assert queue.new_actions() == []
    post(tmp_path, 1, 0, Action("stop", step=1, because="x"))
    with (tmp_path / "action_queue.jsonl").open("a") as file:
        file.write("nonsense\n[1]\n" + '{"number": 2, "at"')
    assert [letter.number for letter in queue.new_actions()] == [1]
    with (tmp_path / "action_queue.jsonl").open("a") as file:
        file.write(': 0, "action": "stop", "step": 1, "because": "x"}\n')
    assert [letter.number for letter in queue.new_actions()] == [2]


def test_an_action_queue_begins_with_the_actions_that_come_after_it_was_opened(tmp_path: Path) -> None:
    early = ActionQueue(tmp_path)
    post(tmp_path, 1, 0, Action("stop", step=1, because="x"))
    ranks = [ActionQueue(tmp_path)]
    assert [letter.number for letter in early.new_actions()] == [1]
    ranks.append(ActionQueue(tmp_path))  # they do not begin at the same moment
    post(tmp_path, 2, 0, Action("stop", step=1, because="x"))
    assert [[letter.number for letter in rank.new_actions()] for rank in (early, *ranks)] == [[2], [2], [2]]


def test_a_letter_that_a_full_disk_has_torn_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    early = ActionQueue(tmp_path)
    post(tmp_path, 1, 0, Action("stop", step=1, because="x"))
    with (tmp_path / "action_queue.jsonl").open("a") as file:
        file.write('{"number": 2, "at": 0, "act')
    late = ActionQueue(tmp_path)
    post(tmp_path, 3, 0, Action("stop", step=1, because="x"))
    assert [letter.number for letter in early.new_actions()] == [1, 3]
    assert [letter.number for letter in late.new_actions()] == [3]


def test_of_two_trainings_side_by_side_each_does_what_was_posted_for_it(run: RunFolder) -> None:
    loops = Loop(), Loop()
    for loop in loops:
        loop.train(20)
    post(run.path, 1, 0, Action("lower-lr", step=20, because="metric-decline", settings={"factor": 0.5}), part=0)
    for loop in loops:
        loop.train(2)
    moved = [((loop.model.weight - loop.before[-1]) / loop.model.weight.grad).mean().item() for loop in loops]
    assert moved == [pytest.approx(-0.05, rel=1e-4), pytest.approx(-0.1, rel=1e-4)]
    assert [(answer["number"], answer["state"]) for answer in answers(run)] == [(1, "done")]


def test_clipping_is_refused_where_a_gradient_scaler_would_undo_it(run: RunFolder) -> None:
    loop, scaler = Loop(), torch.amp.GradScaler("cpu")  # type: ignore[attr-defined]

    def step() -> None:
        loop.optimizer.zero_grad()
        scaler.scale(loop.model(torch.randn(8, 4)).square().mean()).backward()
        scaler.step(loop.optimizer)
        scaler.update()

    step()
    post(run.path, 1, 0, Action("clip", step=1, because="gradient-explosion", settings={"max_norm": 1e-3, "steps": 5}))
    step()
    (answer,) = answers(run)
    assert answer["state"] == "refused" and "gradient scaler" in answer["detail"] and "clip_grad_norm_" in answer["detail"]
