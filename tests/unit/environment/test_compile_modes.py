"""torch.compile's modes on a user's model: when each pays off, and that a bad factory is told in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from every_case import every_case

from holdfast.environment.compile_modes import MODES, Measured, advice, as_row, break_even, measure
from holdfast.errors import UsageError

EAGER = Measured(mode="eager", step_seconds=0.010)
DEFAULT = Measured(mode="default", step_seconds=0.008, compile_seconds=20.0)
TUNED = Measured(mode="max-autotune", step_seconds=0.007, compile_seconds=300.0)
FACTORIES = """
import torch

class Breaks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
    def forward(self, x):
        x = self.inner(x)
        torch._dynamo.graph_break()
        return torch.relu(x)

def model():
    return Breaks(), torch.randn(16, 8)

def step():
    made, x = model()
    return lambda: made(x).sum()

def wrong():
    return [1, 2]

def fails():
    return torch.nn.Linear(8, 8), torch.randn(4, 9)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "made_for_compile.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_compiling_pays_off_once_the_steps_saved_as_much_as_it_took() -> None:
    assert break_even(EAGER, DEFAULT) == 10_001  # 20 s at 2 ms saved a step
    assert break_even(EAGER, Measured(mode="default", step_seconds=0.0099, compile_seconds=1.0)) is None  # within the noise
    assert break_even(EAGER, Measured(mode="default", step_seconds=0.011, compile_seconds=1.0)) is None
    assert break_even(EAGER, Measured(mode="default", failed="too slow")) is None


def test_the_mode_is_chosen_by_the_number_of_steps_with_compiling_counted_in() -> None:
    assert advice([EAGER, DEFAULT, TUNED]) == [(0, "eager"), (10_001, "default"), (280_001, "max-autotune")]
    slower = Measured(mode="max-autotune", step_seconds=0.0079, compile_seconds=300.0)
    assert advice([EAGER, DEFAULT, slower]) == [(0, "eager"), (10_001, "default")]  # 1 % is not worth 280 s
    assert advice([EAGER, Measured(mode="default", failed="x")]) == [(0, "eager")]


def test_a_mode_that_is_quicker_to_compile_and_to_run_leaves_no_room_for_the_other() -> None:
    better = Measured(mode="reduce-overhead", step_seconds=0.005, compile_seconds=10.0)
    assert advice([EAGER, DEFAULT, better]) == [(0, "eager"), (2001, "reduce-overhead")]


def test_rows_have_the_speed_and_the_break_even() -> None:
    row = as_row(EAGER, DEFAULT)
    assert row["speedup"] == pytest.approx(1.25) and row["break_even_steps"] == 10_001 and row["mode"] == "default"


@every_case("name", ["train.py", "train", "a b:c", ":x", ""])
def test_what_names_no_factory_is_refused_before_anything_is_started(name: str) -> None:
    with pytest.raises(UsageError, match="does not name a factory"):
        measure(name, "eager")


@pytest.mark.slow
def test_a_step_is_measured_without_compiling(here: Path) -> None:
    seen = measure("made_for_compile:model", "eager", seconds=120)
    assert seen.failed is None and seen.step_seconds and seen.compile_seconds is None
    assert seen.device in ("cpu", "cuda") and seen.peak_bytes and seen.loss is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere_to_be_found:make", "cannot be loaded"),
        ("made_for_compile:absent", "cannot be loaded"),
        ("made_for_compile:wrong", "returned list"),
        ("made_for_compile:fails", "a step failed without compiling"),
    ],
)
def test_a_factory_that_cannot_be_used_is_told_in_words(here: Path, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        measure(name, "eager", seconds=120)


@pytest.mark.slow
def test_compiling_is_measured_with_its_graph_breaks_and_the_smaller_last_batch(here: Path) -> None:
    seen = measure("made_for_compile:model", "default", seconds=160)
    assert seen.failed is None and seen.compile_seconds and seen.compile_seconds > (seen.step_seconds or 1)
    assert seen.graph_breaks == 1 and seen.break_reasons and seen.partial_batch_seconds


@pytest.mark.slow
def test_a_step_of_the_users_own_and_a_limit_of_time(here: Path) -> None:
    assert measure("made_for_compile:step", "eager", seconds=120).step_seconds
    late = measure("made_for_compile:step", "max-autotune", seconds=2)
    assert late.failed is not None and "not finished in 2 s" in late.failed and MODES[-1] == "max-autotune"
