"""A plain script with `--resume`: one that restores all is left alone, one that forgets something is told what it forgot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from holdfast_run import PYTHON, VICTIMS, start, typed, wait_until
from watched_training import WarmPython

from holdfast.recovery.judge import Judge
from holdfast.signals.run_folder import RunFolder

VICTIM = VICTIMS / "saves_and_resumes.py"
Rows = list[dict[str, Any]]


class Place:
    """A folder in which a script is trained, saved and resumed; each run is watched and then judged."""

    def __init__(self, folder: Path, warm: WarmPython, *always: str) -> None:
        self.folder, self._warm, self._always = folder, warm, always

    def train(self, name: str, *words: str) -> Rows:
        run = RunFolder.create(self.folder / "runs", name, command=["python", str(VICTIM)])
        env = {"HOLDFAST_RUN": str(run.path), "HOLDFAST_DEBUG": "raise", "HOLDFAST_SAMPLING": "full"}
        self._warm.run(self.folder, str(VICTIM), *self._always, *words, **env)
        Judge(run).look(act=False)
        return list(run.journal)

    def resume(self, *words: str) -> Rows:
        return self.train("again", "--steps", "150", "--resume", "last.pt", *words)


@pytest.fixture(scope="module")
def saved(warm: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A training of 500 steps with batch normalisation, which has learned most of what there is."""
    place = Place(tmp_path_factory.mktemp("saved"), warm, "--norm")
    assert not findings(place.train("before", "--steps", "500", "--save", "last.pt", "--save-at", "500"))
    return place


def findings(rows: Rows) -> Rows:
    return [row for row in rows if row["kind"] == "finding"]


def weighty(rows: Rows) -> Rows:
    return [row for row in findings(rows) if row["severity"] != "info"]


def verdict(rows: Rows) -> dict[str, Any]:
    (last,) = (row for row in rows if row.get("event") == "resume-watch" and row.get("over"))
    return last


def causes(rows: Rows) -> list[str]:
    return next((row["causes"] for row in rows if row["kind"] == "diagnosis"), [])


# All restored


HEALTHY = [
    "--save-at 130 --batch 16",  # in the middle of a pass
    "--save-at 80 --lr 0.01 --atomic",  # while the loss still falls fast
]
ALSO_HEALTHY = [
    "--save-at 300 --dropout 0.4 --norm --schedule none",
    "--save-at 400",
    "--save-at 400 --batch 4 --noise 0.3",
    "--save-at 250 --samples 256 --noise 0",  # memorised
]


@pytest.mark.parametrize(
    ("how", "seed"),
    [
        *((how, 0) for how in HEALTHY),
        *(pytest.param(how, 1, marks=pytest.mark.slow) for how in HEALTHY),
        *(pytest.param(how, seed, marks=pytest.mark.slow) for how in ALSO_HEALTHY for seed in (0, 1)),
    ],
)
def test_a_resume_that_restores_all_is_healthy(warm: WarmPython, tmp_path: Path, how: str, seed: int) -> None:
    place = Place(tmp_path, warm, "--seed", str(seed), *how.split())
    saved_at = int(how.split()[1])
    place.train("before", "--steps", str(min(400, saved_at + 50)), "--save", "last.pt")
    rows = place.resume()
    assert weighty(rows) == []
    end = verdict(rows)
    assert (end["verdict"], end["against"]["run"], end["against"]["step"]) == ("healthy", "before", saved_at)


def test_a_run_that_was_resumed_twice_is_judged_against_the_last(saved: Place) -> None:
    saved.train("second", "--steps", "120", "--resume", "last.pt", "--save", "second.pt")
    rows = saved.train("third", "--steps", "120", "--resume", "second.pt")
    (row,) = (one for one in rows if one.get("event") == "resumed")
    assert row["at"] == 620 and row["before"]["step"] == 120
    assert weighty(rows) == [] and verdict(rows)["against"]["run"] == "second"


# Something forgotten


def test_a_forgotten_optimizer_is_told(saved: Place) -> None:
    rows = saved.resume("--forget", "optimizer")
    (finding,) = weighty(rows)
    assert finding["code"] == "resume-mismatch" and finding["severity"] == "warning"
    assert "moments" in finding["evidence"]["suspects"] and finding["evidence"]["update_times"] > 1.6
    assert "moments-not-restored" in causes(rows) and verdict(rows)["verdict"] == "warning"


def test_a_forgotten_scheduler_is_told(saved: Place) -> None:
    rows = saved.resume("--forget", "scheduler")
    (finding,) = weighty(rows)
    evidence = finding["evidence"]
    assert evidence["suspects"] == ["learning-rate"] and evidence["lr"] == 0.003 > 1.4 * evidence["lr_before"]
    assert causes(rows) == ["learning-rate-not-restored"]


def test_forgotten_statistics_are_told_though_training_does_not_show_them(saved: Place) -> None:
    rows = saved.resume("--forget", "statistics")
    (finding,) = weighty(rows)
    assert finding["evidence"]["suspects"] == ["normalisation"] and finding["evidence"]["statistics_missing"] == 4
    assert causes(rows) == ["normalisation-not-restored"]


@pytest.mark.parametrize("forgets", ["weights", "key"])
def test_weights_that_were_not_loaded_are_told(saved: Place, forgets: str) -> None:
    rows = saved.resume("--forget", forgets)
    (finding,) = weighty(rows)
    evidence = finding["evidence"]
    assert evidence["suspects"] == ["weights"] and finding["step"] < 40
    assert evidence["first_loss"] > 3 * evidence["normal"] and evidence.get("weights_missing", 10) == 10
    assert causes(rows) == ["weights-not-restored"]


def test_a_hundred_times_the_rate_is_an_explosion(saved: Place) -> None:
    rows = saved.resume("--times-lr", "100")
    told = weighty(rows)
    assert told[-1]["severity"] == "critical" and told[-1]["step"] < 100
    assert told[-1]["evidence"]["suspects"] == ["learning-rate"]
    assert verdict(rows)["verdict"] == "explosion"
    assert causes(rows) == ["learning-rate-not-restored"]


def test_fine_tuning_is_not_watched_as_a_resume(saved: Place) -> None:
    rows = saved.resume("--classes", "5", "--forget", "optimizer,scheduler")
    assert [row.get("event") for row in rows] == ["loaded"]


def test_without_a_run_before_it_says_so_once(warm: WarmPython, tmp_path: Path) -> None:
    place = Place(tmp_path, warm)
    warm.run(tmp_path, str(VICTIM), "--steps", "200", "--save", "last.pt")  # nobody watches
    rows = place.resume()
    begins = [row for row in rows if row.get("verdict") == "watching"]
    assert [row["against"] for row in begins] == [None] and findings(rows) == []
    assert verdict(rows)["verdict"] == "healthy"


# As a user sees it


@pytest.mark.slow
def test_while_it_lasts_ps_and_tail_show_the_watch(saved: Place) -> None:
    def show(*words: str) -> str:
        return typed(*words, folder=saved.folder).stdout

    words = ("--norm", "--steps", "100000", "--resume", "last.pt", "--pause", "0.05")
    process = start(saved.folder, "--name", "live", "--", PYTHON, str(VICTIM), *words)
    try:
        journal = saved.folder / "runs/live/journal.jsonl"
        wait_until(lambda: journal.exists() and "watching" in journal.read_text())
        assert "resumed at step 500, watching: healthy, " in show("ps")
        assert " of 500 steps" in show("tail", "-t", "live", "--once")
        assert "resumed at step 500 from last.pt of run before" in show("journal", "-t", "live")
    finally:
        process.terminate()
        process.communicate(timeout=600)
