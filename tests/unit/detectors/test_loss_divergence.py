from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from every_case import every_case

from holdfast.detectors.finding import Finding

Replay = Callable[..., list[Finding]]


def learning(seed: int, count: int = 1000, *, start: float = 2.3, end: float = 0.2, tail: float = 0.25) -> Any:
    """A loss that falls with a noise that scales with it; `tail` near 2 is a batch of one."""
    random = np.random.default_rng(seed)
    curve = end + (start - end) * np.exp(-np.arange(count) / 80)
    return curve * np.exp(tail * random.standard_normal(count) - tail**2 / 2)


def the(code: str, findings: list[Finding]) -> Finding:
    return next(finding for finding in findings if finding.code == code)


def acting(findings: list[Finding]) -> list[str]:
    return [finding.code for finding in findings if finding.severity != "info"]


@every_case("seed", range(5))
@every_case("tail", [0.05, 0.3, 1.0, 2.0])
def test_ordinary_noise_is_left_alone(replay: Replay, seed: int, tail: float) -> None:
    assert acting(replay(loss=learning(seed, tail=tail), grad_norm=learning(seed + 100, start=1.0, tail=tail))) == []


@pytest.mark.slow
@every_case("seed", range(5, 40))
@every_case("tail", [0.05, 0.3, 1.0, 2.0])
def test_more_ordinary_noise_is_left_alone_too(replay: Replay, seed: int, tail: float) -> None:
    assert acting(replay(loss=learning(seed, tail=tail), grad_norm=learning(seed + 100, start=1.0, tail=tail))) == []


@every_case("seed", range(4))
def test_a_loss_that_goes_up_and_down_like_a_gan_is_left_alone(replay: Replay, seed: int) -> None:
    random = np.random.default_rng(seed)
    swing = 1.0 + 0.8 * np.sin(np.arange(1500) / random.uniform(5, 80)) + np.cumsum(random.standard_normal(1500)) * 0.02
    assert acting(replay(loss=swing + 0.3 * random.standard_normal(1500))) == []


@every_case("seed", range(4))
def test_a_loss_around_zero_is_left_alone(replay: Replay, seed: int) -> None:
    random = np.random.default_rng(seed)
    assert acting(replay(loss=random.standard_t(2.5, 1500) * 0.1)) == []


@every_case("seed", range(4))
def test_a_warm_restart_that_raises_the_loss_fiftyfold_is_left_alone(replay: Replay, seed: int) -> None:
    random = np.random.default_rng(seed)
    step = np.arange(1600) % 400
    lr = 0.1 * 0.5 * (1 + np.cos(np.pi * step / 400))
    first = 2.3 * np.exp(-np.arange(1600) / 30)
    loss = (first + 2.0 * lr + 0.002) * np.exp(0.2 * random.standard_normal(1600))
    assert acting(replay(loss=loss, lr=lr, grad_norm=loss)) == []


@every_case("seed", range(3))
def test_a_warm_restart_before_a_divergence_is_no_jump_of_the_learning_rate(replay: Replay, seed: int) -> None:
    loss, step = learning(seed, 500), np.arange(500)
    loss[460:] *= 5.0 / 0.2
    found = the("loss-divergence", replay(loss=loss, lr=0.02 * 0.5 * (1 + np.cos(np.pi * (step % 420) / 420))))
    assert found.onset >= 458 and "lr_jumped_at" not in found.evidence


@every_case("seed", range(3))
@every_case("onset", [1, 5, 40])
def test_a_loss_that_leaves_its_first_values_far_behind_with_huge_updates_has_diverged(
    replay: Replay, seed: int, onset: int
) -> None:
    loss = 4.4 * np.exp(0.1 * np.random.default_rng(seed).standard_normal(120))
    loss[onset:] *= 30.0
    sizes = np.where(np.arange(120) % 10 == 2, 0.2, np.nan)  # of the updates, against the weights
    found = the("loss-divergence", replay(loss=loss, update_ratio=sizes))
    assert abs(found.onset - onset) <= 2 and found.step <= onset + 24
    assert "loss-divergence" not in acting(replay(loss=loss, update_ratio=sizes / 100)), "updates of normal size: another scale"
    assert "loss-divergence" not in acting(replay(loss=loss)), "nothing is known of the updates"


@every_case("seed", range(3))
@every_case("tail", [0.1, 0.4])
@every_case("level", [2.3, 5.0, 1e4])
def test_a_loss_that_jumps_back_to_chance_and_stays_is_found_soon(replay: Replay, seed: int, tail: float, level: float) -> None:
    loss = learning(seed, tail=tail)
    loss[600:] *= level / 0.2
    found = the("loss-divergence", replay(loss=loss))
    assert found.severity == "critical"
    assert 598 <= found.onset <= 602
    assert found.step - 600 <= 32


def test_a_loss_that_jumps_while_it_still_falls_fast_is_found(replay: Replay) -> None:
    falling = 3.0 - 2.4 * np.arange(75) / 75
    loss = np.concatenate([falling, np.full(175, 3.55)]) + 0.06 * np.random.default_rng(0).standard_normal(250)
    found = the("loss-divergence", replay(loss=loss))
    assert abs(found.onset - 75) <= 1 and found.step <= 110


def test_a_batch_of_one_that_loses_everything_is_found(replay: Replay) -> None:
    loss = learning(0, 2000, tail=1.2)
    loss[1500:] *= 4.0 / 0.2
    assert abs(the("loss-divergence", replay(loss=loss)).onset - 1500) < 16


@every_case("length", [1, 5, 12])
def test_a_spike_that_comes_back_is_no_divergence(replay: Replay, length: int) -> None:
    loss = learning(1)
    loss[600 : 600 + length] = 9.0
    findings = replay(loss=loss)
    assert acting(findings) == []
    assert the("loss-spike", findings).evidence["recovered"]


def test_a_rise_that_decays_by_itself_is_given_time(replay: Replay) -> None:
    loss = learning(1)
    loss[600:] += 8.0 * np.exp(-np.arange(400) / 12)
    assert acting(replay(loss=loss)) == []


def test_the_losses_of_skipped_steps_are_not_part_of_the_history(replay: Replay) -> None:
    loss, skipped = learning(1), np.zeros(1000, np.int64)
    loss[600:640], skipped[600:640:2] = 50.0, 1
    skipped[600:640] = 1
    scale = np.full(1000, 1024.0)
    assert "loss-divergence" not in acting(replay(loss=loss, skipped=skipped, scale=scale))


def test_a_jump_of_the_learning_rate_is_named(replay: Replay) -> None:
    loss, lr = learning(3), np.full(1000, 1e-3)
    loss[601:], lr[600:] = 2.4, 0.1
    found = the("loss-divergence", replay(loss=loss, lr=lr))
    assert found.evidence["lr_jumped_at"] == 600
    assert (found.evidence["lr_before"], found.evidence["lr"]) == (1e-3, 0.1)


def test_losses_that_were_high_by_chance_right_before_a_jump_of_the_learning_rate_do_not_hide_it(replay: Replay) -> None:
    loss = learning(3)
    loss[500:] = 3.0
    loss[498:500] = 2.0
    found = the("loss-divergence", replay(loss=loss, lr=np.where(np.arange(1000) < 500, 0.001, 0.1)))
    assert (found.onset, found.evidence["lr_jumped_at"], found.evidence["lr_before"]) == (500, 500, 0.001)


def test_a_loss_that_comes_down_a_little_under_a_rate_far_too_high_is_still_found(replay: Replay) -> None:
    loss, lr = learning(3), np.full(1000, 1e-3)
    loss[601:] = 1.4 + 20.0 * np.exp(-np.arange(399) / 3)
    assert "loss-divergence" not in acting(replay(loss=loss[:660], lr=lr[:660])), "it comes back by itself"
    lr[600:] = 0.1
    assert the("loss-divergence", replay(loss=loss[:660], lr=lr[:660])).evidence["lr_jumped_at"] == 600


def test_a_warm_up_shortly_before_is_not_taken_for_the_jump(replay: Replay) -> None:
    steps = np.arange(1000)
    loss, lr = 0.2 + 2.1 * np.exp(-steps / 12), 1e-3 * np.minimum(1.0, (1 + steps) / 40)
    loss[91:], lr[90:] = 40.0, 0.1
    found = the("loss-divergence", replay(loss=loss, lr=lr))
    assert (found.evidence["lr_jumped_at"], found.evidence["lr_before"]) == (90, 1e-3)
    lr[90:] = 1e-3
    assert "lr_jumped_at" not in the("loss-divergence", replay(loss=loss, lr=lr)).evidence


def test_a_run_that_learned_nothing_yet_needs_ten_times_its_loss(replay: Replay) -> None:
    random = np.random.default_rng(0)
    loss = 2.3 + 0.05 * random.standard_normal(1000)
    loss[600:] = 6.0
    assert acting(replay(loss=loss)) == []
    loss[600:] = 40.0
    assert acting(replay(loss=loss)) == ["loss-divergence"]


@every_case("seed", range(3))
def test_the_loss_of_an_agent_may_rise_as_it_plays_better(replay: Replay, seed: int) -> None:
    loss = learning(seed, tail=0.1)
    loss[600:] *= 10.0  # the target network was copied
    assert "loss-divergence" in acting(replay(loss=loss)) and "loss-divergence" not in acting(replay(loss=loss, plays=True))
    loss[600:] *= 100.0
    assert "loss-divergence" in acting(replay(loss=loss, plays=True))
