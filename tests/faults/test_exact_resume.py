"""Stopped at any batch and begun again in a fresh process, a training ends bit for bit where it would have ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from watched_training import Rows, Trainings, difference

from holdfast.signals.run_folder import RunFolder

VICTIM = Path(__file__).parents[1] / "victims/resumable_training.py"
STEPS = 14  # eight batches make a pass
PLAIN: dict[str, Any] = {"scheduler": "one-cycle"}
KINDS: dict[str, dict[str, Any]] = {
    "dropout, batch norm, AdamW": {},
    "2 workers": {"workers": 2},
    "one-cycle": PLAIN,
    "SGD with momentum, warm-up, cosine": {"scheduler": "cosine"},
    "scaler, fp16": {"scaler": "fp16"},
    "bf16": {"scaler": "bf16"},
    "averaged model": {"ema": "averaged"},
    "average by hand": {"ema": "by hand"},
    "accumulation": {"accumulate": 2, "scheduler": "one-cycle"},
    "everything": {"workers": 2, "scheduler": "one-cycle", "scaler": "fp16", "ema": "averaged", "accumulate": 2},
}


class Victim:
    """Runs the training in fresh processes; what it ends with when nothing stops it is computed once, without Holdfast."""

    def __init__(self, trainings: Trainings, folder: Path) -> None:
        self.folder, self._trainings = folder, trainings

    def train(self, out: str, how: str, **settings: Any) -> dict[str, Any]:
        """Run it once; what it ended with."""
        words = [str(self.folder / "runs"), str(self.folder / out), str(STEPS), how, json.dumps(settings)]
        self._trainings.warm.run(self.folder, str(VICTIM), *words, HOLDFAST_DEBUG="raise")
        return load(self.folder / out)

    def whole(self, known: dict[str, dict[str, Any]], **settings: Any) -> dict[str, Any]:
        """What it ends with alone."""
        key = json.dumps(settings)
        if key not in known:
            known[key] = self.train("whole", "alone", **settings)
        return known[key]


@pytest.fixture(scope="module")
def known() -> dict[str, dict[str, Any]]:
    return {}


@pytest.fixture
def victim(trainings: Trainings, tmp_path: Path) -> Victim:
    return Victim(trainings, tmp_path)


def load(folder: Path) -> dict[str, Any]:
    end: dict[str, Any] = torch.load(folder / "end.pt", weights_only=False)
    return end


def assert_same_end(whole: dict[str, Any], resumed: dict[str, Any], losses: list[float]) -> None:
    """Whatever a user could lose is there again: weights, moments, averages, rates, scale, losses, random numbers."""
    assert difference(whole["losses"], losses, "losses") is None
    for name in whole["state"]:
        assert difference(whole["state"][name], resumed["state"][name], name) is None
    assert difference(whole["draws"], resumed["draws"], "draws") is None


def assert_resumes(victim: Victim, known: dict[str, dict[str, Any]], how: str, stop: int, **settings: Any) -> None:
    whole = victim.whole(known, **settings)
    stopped = victim.train("stopped", how, stop=stop, **settings)
    resumed = victim.train("resumed", how, seed=99, **settings)
    assert len(stopped["losses"]) == stop
    assert_same_end(whole, resumed, [*stopped["losses"], *resumed["losses"]])


QUICK = ("SGD with momentum, warm-up, cosine", "average by hand", "everything")  # the other kinds are parts of the last one


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[] if kind in QUICK else [pytest.mark.slow]) for kind in KINDS])
def test_stopped_in_the_middle_of_an_epoch_and_resumed_is_bit_equal(kind: str, victim: Victim, known: dict[str, Any]) -> None:
    assert_resumes(victim, known, "store", 11, **KINDS[kind])


PARTS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("2 workers", "accumulation")]  # of everything


@pytest.mark.parametrize("kind", ["average by hand", "everything", *PARTS])
def test_through_watch_it_is_bit_equal_too_and_steps_are_counted_on(kind: str, victim: Victim, known: dict[str, Any]) -> None:
    assert_resumes(victim, known, "run", 11, **KINDS[kind])
    begun = 11 // KINDS[kind].get("accumulate", 1)
    before, resumed = (RunFolder.open(victim.folder / "runs" / name) for name in ("exact", "exact-2"))
    assert Rows(resumed.path / "rank-0", "steps")["step"] == list(range(begun, STEPS))
    rows = [row for row in resumed.journal if row.get("event") == "resumed"]
    assert [(row["step"], row["at"], row["before"]["run"]) for row in rows] == [(begun, begun, str(before.path))]
    assert not [row for row in resumed.journal if row["kind"] == "finding"]


@pytest.mark.parametrize(("stop", "workers"), [(8, 0), (1, 2)])
def test_stopped_after_the_last_or_the_first_batch_of_a_pass_is_bit_equal(
    stop: int, workers: int, victim: Victim, known: dict[str, Any]
) -> None:
    assert_resumes(victim, known, "run", stop, workers=workers, **PLAIN)


@pytest.mark.parametrize("how", ["run", pytest.param("store", marks=pytest.mark.slow)])  # a run saves into a store
def test_killed_right_after_the_save_and_once_more_is_bit_equal(how: str, victim: Victim, known: dict[str, Any]) -> None:
    whole = victim.whole(known, **PLAIN)
    for stop, fresh in ((5, {}), (6, {"seed": 98})):
        with pytest.raises(AssertionError, match="-9"):
            victim.train("killed", how, stop=stop, killed=True, **fresh, **PLAIN)
    resumed = victim.train("resumed", how, seed=99, **PLAIN)
    assert resumed["first"] == 11
    assert_same_end(whole, resumed, [*whole["losses"][:11], *resumed["losses"]])
