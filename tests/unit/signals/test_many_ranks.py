"""Thousands of ranks: who writes everything, and what the others leave out."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.probe.rows import last_rows, newest_row
from holdfast.signals.many_ranks import EVERY_SECONDS, Thinning, pause_after, table_for, thinning_for
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.schema import TABLES


def test_up_to_64_ranks_and_the_first_eight_of_more_write_everything() -> None:
    assert thinning_for(63, 64) is None and thinning_for(7, 4096) is None
    assert thinning_for(8, 65) is not None


@pytest.mark.parametrize("seconds", [0.01, 0.3, 5.0, 40.0])
def test_rows_come_every_half_minute_or_so_at_steps_that_all_ranks_share(seconds: float) -> None:
    ranks = [Thinning(), Thinning()]
    kept = [
        [step for step in range(5000) if rank.ended(step, seconds * (1 + 0.01 * number))] for number, rank in enumerate(ranks)
    ]
    assert kept[0][2:] == kept[1][2:] != []
    assert min(EVERY_SECONDS, 1000 * seconds) <= (kept[0][-1] - kept[0][-2]) * seconds < 3 * max(EVERY_SECONDS, seconds)


def test_the_more_ranks_the_less_room_is_reserved() -> None:
    sizes = [
        table.segment_rows * len(table.columns) for world in (1, 64, 4096) if (table := table_for(TABLES["steps"], 9, world))
    ]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 60 * sizes[-1]
    assert pause_after(1.0, 64) == 0.0 and pause_after(1.0, 65) == 100.0


def test_a_thinned_rank_writes_no_sampled_tables_and_its_rows_are_read_like_all_others(tmp_path: Path) -> None:
    recorder = Recorder.start(RunFolder.create(tmp_path, "many"), 20, world=128)
    recorder.table("parameters").append((0, 0, 1.0, 1.0, 1.0, 0))
    steps = recorder.table("steps")
    values = {"step": 7, "samples": 4, "gpu_allocated": 0, "host_rss": 1}
    steps.append([values.get(column.name, 0.5) for column in steps.table.columns])
    recorder.close()
    assert not (recorder.recording.path / "parameters").exists()
    assert last_rows(recorder.recording.path, "steps", ("step", "loss"), 5)["step"].tolist() == [7]
    newest = newest_row(recorder.recording.path, "steps", ("step", "loss"))
    assert newest is not None and newest.sealed and newest.values["loss"].tolist() == [0.5]
