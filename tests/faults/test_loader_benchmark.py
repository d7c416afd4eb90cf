"""`holdfast validate --benchmark` on real loaders in real processes: what it measures, and what it says of one that fails."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from holdfast_run import Done, typed

from holdfast.loading.benchmark import Asked, Benchmark, benchmark
from holdfast.loading.setting import Limits, Setting, Trial, chosen

VICTIMS = Path(__file__).parents[1] / "victims"
MB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(VICTIMS)
        yield


def measured(factory: str, *, seconds: float, cores: int = 2, **limits: Any) -> Benchmark:
    return benchmark(
        Asked(target=f"slow_loaders:{factory}", seconds=seconds, cores=cores, limits=Limits(**{"memory": 1 << 40, **limits}))
    )


def command(*words: str) -> Done:
    return typed("validate", *words, "--benchmark")


@pytest.fixture(scope="module")
def waiting() -> dict[str, Any]:
    """What the command says of a loader that waits; its factory prints something, which is no part of the answer."""
    answer = command("slow_loaders:waits", "--json", "--time-limit", "16")
    assert answer.returncode == 0, answer.stderr
    row: dict[str, Any] = json.loads(answer.stdout)
    return row


@pytest.mark.slow
def test_every_setting_that_was_tried_is_listed_with_the_users_own_first(waiting: dict[str, Any]) -> None:
    own = next(row for row in waiting["settings"] if row["own"])
    assert own == waiting["settings"][0] and own["workers"] == 0 and waiting["failed"] is None
    assert {row["workers"] for row in waiting["settings"]} >= {0, 1, 2}


@pytest.mark.slow
def test_workers_are_recommended_to_a_loader_that_waits_and_that_is_faster(waiting: dict[str, Any]) -> None:
    assert waiting["recommended"]["workers"] >= 2
    assert waiting["gain"] > 1.3
    assert "persistent_workers=True" in waiting["recommended"]["line"]


@pytest.mark.slow
def test_the_time_is_found_where_it_is_spent(waiting: dict[str, Any]) -> None:
    seconds = waiting["seconds_per_sample"]
    assert seconds["augment"] > 0.6 * sum(seconds.values())
    assert seconds["read"] == seconds["decode"] == 0


@pytest.mark.slow
def test_memory_grows_with_the_workers_and_a_limit_changes_what_is_recommended(waiting: dict[str, Any]) -> None:
    memory = {row["workers"]: row["memory"] for row in waiting["settings"]}
    assert memory[2] > memory[1] > memory[0]
    names = ("workers", "prefetch", "threads", "pin")
    trials = [
        Trial(setting=Setting(**{name: row[name] for name in names}), rate=row["rate"], memory=row["memory"], own=row["own"])
        for row in waiting["settings"]
    ]
    less = chosen(trials, Limits(memory=(memory[1] + memory[2]) // 2))
    assert less is not None and less.setting.workers < 2


@pytest.mark.slow
def test_a_loader_that_takes_more_memory_than_it_may_is_ended_and_not_recommended() -> None:
    found = measured("waits", seconds=5, memory=2 * MB)
    assert [trial.how for trial in found.trials if trial.setting.workers] in ([], ["outgrew"])
    assert found.best is None or found.best.setting.workers == 0


@pytest.mark.slow
def test_on_grace_hopper_one_worker_is_recommended_though_more_are_faster() -> None:
    found = measured("waits", seconds=5, workers=1, threads=2)
    assert found.best is not None and found.best.setting.workers == 1
    assert any((trial.setting.workers, trial.setting.threads) == (1, 2) for trial in found.trials)


def commands_of_children() -> list[str]:
    found = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one that has ended and was not waited for has no command
            found.append(" ".join(one.cmdline()))
    return found


@pytest.mark.slow
def test_a_worker_that_hangs_is_told_within_the_time_with_its_line() -> None:
    line = next(
        n
        for n, text in enumerate((VICTIMS / "slow_loaders.py").read_text().splitlines(), 1)
        if "stands still" in text and "#" in text
    )
    found = measured("hangs", seconds=20)
    assert found.failed is not None and "no batch within 8 s" in found.failed
    assert f"slow_loaders.py:{line}, in get" in found.failed
    assert not any("spawn_main" in words for words in commands_of_children()), "it left processes behind"


@pytest.mark.slow
def test_a_worker_that_is_killed_is_told_and_loading_without_workers_still_measured() -> None:
    found = measured("dies", seconds=5)
    assert found.failed is not None and "a worker died (Killed)" in found.failed
    assert found.best is not None and found.best.setting.workers == 0


def test_a_sample_that_cannot_be_loaded_is_named_with_its_line_and_without_a_traceback() -> None:
    answer = command("slow_loaders:raises", "--time-limit", "20")
    assert answer.returncode == 1
    assert "sample 7 cannot be loaded: KeyError: 'lost' (slow_loaders.py:" in answer.stderr
    assert "Traceback" not in answer.stderr + answer.stdout
