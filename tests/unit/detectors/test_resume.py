"""A resume is judged by numbers: what fits is left alone, and what does not says which state was not restored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from every_case import every_case

from holdfast.detectors.resume.fit import loss_fit
from holdfast.detectors.resume.mismatch import resume_mismatch
from holdfast.detectors.resume.runs import Restored, Resumed, RunBefore
from holdfast.signals.view import Floats

WHOLE = {"of": 10, "missing": 0, "missing_statistics": 0, "unexpected": 0}
ALL = Restored(weights=WHOLE, optimizer="loaded", scheduler="loaded")


def losses(begin: int, count: int, rng: np.random.Generator, *, noise: float, floor: float, pace: float) -> Floats:
    """A loss that falls to a floor, with the long tails of small batches."""
    falling = floor + (2.3 - floor) * np.exp(-np.arange(begin, begin + count) / pace)
    return falling * np.exp(noise * rng.standard_normal(count))


def training(
    seed: int = 0, *, saved: int = 400, noise: float = 0.2, floor: float = 0.3, pace: float = 120.0, later: int = 0
) -> Any:
    """A run before, and the function that gives the losses of a run that goes on from its save."""
    rng = np.random.default_rng(seed)
    shape = {"noise": noise, "floor": floor, "pace": pace}
    whole = losses(0, saved + later, rng, **shape)
    rate = 1e-3 * (0.5 + 0.5 * np.cos(np.pi * np.arange(saved + later + 200) / 1000))
    before = RunBefore(
        loss=whole[:saved],
        later=whole[saved:],
        first=whole[:20],
        lr=rate[:saved],
        lr_later=rate[saved : saved + later],
        lr_first=rate[:20],
        stride=np.abs(1 + 0.1 * rng.standard_normal(6)),
    )

    def after(begin: int | None = None, count: int = 120) -> Resumed:
        start = saved if begin is None else begin
        return Resumed(loss=losses(start, count, rng, **shape), lr=rate[saved : saved + count], stride=np.array([1.05]))

    return before, after


def suspects(finding: Any) -> list[str]:
    assert finding is not None and finding.code == "resume-mismatch"
    return list(finding.evidence["suspects"])


# What fits


@every_case("noise", [0.02, 0.2, 0.6, 1.2])
@every_case("saved", [40, 150, 400, 1500])
def test_a_full_resume_is_never_a_finding(noise: float, saved: int) -> None:
    for seed in range(10):
        for later in (0, 100):
            before, after = training(seed, saved=saved, noise=noise, later=later)
            for count in (10, 20, 50, 200):
                assert resume_mismatch(before, after(count=count), ALL) is None, (seed, later, count)


@every_case("seed", range(10))
def test_one_high_loss_after_the_resume_is_no_finding(seed: int) -> None:
    before, after = training(seed)
    now = after()
    now.loss[seed : seed + 3] *= 20
    assert resume_mismatch(before, now, ALL) is None


def test_a_loss_that_falls_faster_after_the_resume_is_no_finding() -> None:
    before, after = training()
    now = after()
    assert resume_mismatch(before, replace(now, loss=0.3 * now.loss), ALL) is None


def test_a_schedule_that_steps_down_or_starts_over_by_itself_is_no_finding() -> None:
    before, after = training()
    now = after()
    assert resume_mismatch(before, replace(now, lr=0.1 * now.lr), ALL) is None
    assert resume_mismatch(before, replace(now, lr=np.full(120, before.lr_first[0])), ALL) is None


def test_a_rate_that_the_run_before_had_next_is_no_finding() -> None:
    before, after = training(later=50)
    now = replace(after(), lr=np.full(120, 1e-4))
    went_on = replace(before, lr_later=np.full(50, 1e-4))
    assert resume_mismatch(went_on, now, replace(ALL, scheduler=None)) is None


def test_too_few_steps_say_nothing() -> None:
    before, after = training()
    assert resume_mismatch(before, after(0, count=9), ALL) is None
    assert loss_fit(replace(before, loss=before.loss[:10]), after(0)) is None


# What does not


@every_case("noise", [0.05, 0.2, 0.4])
@every_case("seed", range(10))
def test_weights_that_were_not_loaded_are_found_within_thirty_steps(seed: int, noise: float) -> None:
    before, after = training(seed, noise=noise)
    finding = resume_mismatch(before, after(0, count=30), replace(ALL, weights=None))
    assert suspects(finding) == ["weights"] and finding.severity == "warning"
    assert finding.evidence["loss"] > 1.5 > finding.evidence["normal"]


def test_weights_that_were_missing_are_named_with_their_number() -> None:
    before, after = training()
    finding = resume_mismatch(before, after(0, count=30), replace(ALL, weights={**WHOLE, "missing": 10}))
    assert suspects(finding) == ["weights"] and finding.evidence["weights_missing"] == 10
    quiet = resume_mismatch(before, after(), replace(ALL, weights={**WHOLE, "missing": 10}))
    assert quiet.severity == "info", "the losses say that they came in another way"


def test_a_rate_that_begins_again_is_found_before_the_loss_shows_it() -> None:
    before, after = training()
    now = replace(after(count=12), lr=before.lr_first[:12])
    finding = resume_mismatch(before, now, replace(ALL, scheduler="as new"))
    assert suspects(finding) == ["learning-rate"] and finding.severity == "warning"
    assert finding.evidence["lr"] == pytest.approx(1e-3) and finding.evidence["lr_before"] == pytest.approx(0.65e-3, rel=0.01)


def test_an_empty_optimizer_is_told_and_a_warning_where_updates_are_longer() -> None:
    before, after = training()
    empty = replace(ALL, optimizer="empty")
    assert resume_mismatch(before, after(), empty).severity == "info"
    finding = resume_mismatch(before, replace(after(), stride=np.array([2.4])), empty)
    assert suspects(finding) == ["moments"] and finding.severity == "warning"
    assert finding.evidence["update_times"] == pytest.approx(2.4, rel=0.2)
    assert resume_mismatch(before, replace(after(), stride=np.array([2.4])), replace(ALL, optimizer="keeps nothing")) is None


def test_missing_statistics_are_found_though_the_loss_fits() -> None:
    before, after = training()
    finding = resume_mismatch(before, after(), replace(ALL, weights={**WHOLE, "missing_statistics": 4}))
    assert suspects(finding) == ["normalisation"] and finding.severity == "warning"


def test_a_whole_model_that_is_off_from_the_first_loss_sees_other_inputs() -> None:
    before, after = training()
    finding = resume_mismatch(before, replace(after(), loss=4 * after().loss), ALL)
    assert suspects(finding) == ["normalisation"]


def test_an_evaluation_far_worse_than_the_last_ones_speaks_for_normalisation() -> None:
    before, after = training()
    known = {("val", "loss"): np.array([0.9, 0.6, 0.5, 0.45, 0.44]), ("val", "accuracy"): np.array([0.5, 0.7, 0.8, 0.82, 0.82])}
    for metric, value, worse in [("loss", 0.5, 3.0), ("accuracy", 0.8, 0.1)]:
        for shown, expected in [(value, None), (worse, ["normalisation"])]:
            now = replace(after(), evaluations={("val", metric): np.array([shown])})
            finding = resume_mismatch(replace(before, evaluations=known), now, ALL)
            assert (finding and suspects(finding)) == expected, (metric, shown)
    found_nothing = {("val", "loss"): known["val", "loss"], ("val", "mAP50"): np.array([0.0, 0.0, 0.0, 0.01, 0.0])}
    first_objects = replace(after(), evaluations={("val", "loss"): np.array([3.0]), ("val", "mAP50"): np.array([0.02])})
    assert resume_mismatch(replace(before, evaluations=found_nothing), first_objects, ALL) is None


@every_case("seed", range(10))
def test_a_hundredfold_rate_that_loses_everything_is_an_explosion(seed: int) -> None:
    before, after = training(seed)
    now = after(count=40)
    now.loss[2:] = 2.5 + np.arange(38) * 0.05
    finding = resume_mismatch(before, replace(now, lr=100 * now.lr), ALL)
    assert (finding.severity, finding.evidence["verdict"], suspects(finding)) == ("critical", "explosion", ["learning-rate"])


def test_losses_that_are_no_longer_finite_are_an_explosion_with_and_without_a_run_before() -> None:
    before, after = training()
    now = after(count=30)
    now.loss[20:] = np.nan
    for known in (before, RunBefore()):
        finding = resume_mismatch(known, now, ALL)
        assert finding.severity == "critical"


def test_without_a_run_before_only_a_large_rise_is_told() -> None:
    _, after = training()
    assert resume_mismatch(RunBefore(), after(), ALL) is None
    rising = after(count=60)
    rising.loss[:] = np.linspace(0.4, 12, 60)
    assert resume_mismatch(RunBefore(), rising, ALL).severity == "critical"


def test_a_pass_that_began_anew_is_information_only() -> None:
    before, after = training()
    halfway = replace(before, pass_steps=50, into_pass=20)
    finding = resume_mismatch(halfway, replace(after(), pass_steps=50), ALL)
    assert suspects(finding) == ["data-position"] and finding.severity == "info"
    for now, into in [(30, 20), (50, 50), (None, 20)]:
        assert resume_mismatch(replace(before, pass_steps=50, into_pass=into), replace(after(), pass_steps=now), ALL) is None
