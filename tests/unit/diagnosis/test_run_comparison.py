"""Two runs or several seeds on one metric: what is better, and above all when nothing can be said."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.diagnosis.run_comparison import compare
from holdfast.errors import UsageError
from holdfast.signals.curves import Curve, Curves
from holdfast.signals.run_folder import RunFolder

Source = tuple[Curves, RunFolder | None]


def run(
    name: str, end: float = 0.7, *, epochs: int = 40, noise: float = 0.01, seed: int = 0, like_its_neighbour: float = 0.0
) -> Source:
    random = np.random.default_rng(seed)
    steps, wobble = np.arange(1, epochs + 1), np.zeros(epochs)
    for epoch in range(epochs):
        before = wobble[epoch - 1] if epoch else 0.0
        wobble[epoch] = like_its_neighbour * before + random.normal(0, noise * np.sqrt(1 - like_its_neighbour**2))
    values = end * (1 - 0.9**steps) + wobble
    curve = Curve("val acc", steps, values, role="metric", split="val", better="higher", epochs=steps.astype(np.float64))
    return Curves(name, (curve,)), None


@pytest.mark.parametrize("like_its_neighbour", [0.0, 0.6])
def test_runs_that_differ_by_chance_are_rarely_called_different(like_its_neighbour: float) -> None:
    """One in twenty is what the interval promises; a tool that often sees what is not there is worse than none."""
    pairs = [
        [run(name, seed=2 * pair + place, like_its_neighbour=like_its_neighbour) for place, name in enumerate(("a", "b"))]
        for pair in range(200)
    ]
    assert sum(compare(pair).gaps[0].is_better is not None for pair in pairs) <= 20


def test_a_large_difference_is_seen_with_its_sign_and_its_interval() -> None:
    (gap,) = compare([run("base"), run("better", 0.8, seed=1)]).gaps
    assert gap.is_better is True and gap.low is not None and gap.high is not None
    assert 0 < gap.low < 0.1 < gap.high + 0.02 and gap.difference == pytest.approx(0.1, abs=0.04)
    (gap,) = compare([run("base"), run("worse", 0.6, seed=1)]).gaps
    assert gap.is_better is False


def test_runs_of_different_length_are_compared_where_the_shorter_one_ends() -> None:
    comparison = compare([run("long", epochs=60), run("short", epochs=25, seed=1)])
    assert comparison.unit == "epoch" and comparison.position == 25
    assert comparison.runs[0].at(25) == (comparison.runs[0].curve.values[24], 25)
    assert comparison.runs[0].at(25.5)[1] == 25, "the last evaluation before it"
    assert compare([run("long", epochs=60), run("short", epochs=25, seed=1)], at_epoch=10).position == 10
    with pytest.raises(UsageError, match="short ends at epoch 25") as caught:
        compare([run("long", epochs=60), run("short", epochs=25, seed=1)], at_epoch=40)
    assert "--at-epoch 25" in caught.value.fix


def test_names_that_end_in_numbers_are_seeds_of_one_configuration() -> None:
    seeds = [run(f"{name}-{seed}", end, seed=seed) for name, end in (("base", 0.7), ("tuned", 0.76)) for seed in range(4)]
    comparison = compare(seeds)
    assert {name: len(runs) for name, runs in comparison.groups.items()} == {"base": 4, "tuned": 4}
    assert comparison.has_seeds and comparison.gaps[0].name == "tuned" and comparison.gaps[0].is_better is True
    assert list(compare([run("try-1"), run("try-2", seed=1)]).groups) == ["try-1", "try-2"], (
        "otherwise nothing is left to compare"
    )


def test_too_few_evaluations_or_one_seed_against_several_give_no_verdict() -> None:
    (gap,) = compare([run("a", epochs=4), run("b", 0.9, epochs=4)]).gaps
    assert gap.is_better is None and gap.low is None and gap.difference > 0
    (gap,) = compare([run("a-1"), run("a-2", seed=1), run("b", 0.9)]).gaps
    assert gap.is_better is None and gap.low is None


def test_what_cannot_be_compared_is_said_with_what_there_is() -> None:
    lonely = Curves("other", (Curve("reward", np.arange(5), np.arange(5.0), role="metric", better="higher"),))
    with pytest.raises(UsageError, match=r"no metric in common: a has val acc; other has reward"):
        compare([run("a"), (lonely, None)])
    with pytest.raises(UsageError, match=r"other has no values of val acc"):
        compare([run("a"), (lonely, None)], metric="val acc")
    with pytest.raises(UsageError, match="only one run"):
        compare([run("a")])
