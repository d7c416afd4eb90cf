from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from made_stacks import in_all_reduce, reading

from holdfast.probe.cluster import find
from holdfast.probe.stacks.cluster_report import Place, _one_job, _report, reports_on
from holdfast.probe.stacks.keep import kept_stacks
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.web.start import Settings, serving


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    """A run whose only rank is this very process."""
    folder = RunFolder.create(tmp_path / "runs", "run")
    recorder = Recorder.start(folder, 0)
    yield folder
    recorder.close()


def test_ranks_on_two_machines_are_told_as_one_job() -> None:
    places = {("a", "run"): Place("node1", "run", [in_all_reduce(0)]), ("b", "run"): Place("node2", "run", [reading(1)])}
    assert _one_job(places)
    verdict = _report(places, {}, 0.5).verdict
    assert verdict.code == "collective-stall" and verdict.evidence["missing"] == [1]


def test_two_trainings_with_the_same_ranks_are_told_apart() -> None:
    places = {("a", "one"): Place("node1", "one", [in_all_reduce(0)]), ("b", "two"): Place("node1", "two", [reading(0)])}
    assert not _one_job(places)


def test_a_server_is_asked_for_the_stacks_of_its_run(run: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with serving(Settings(listen="127.0.0.1:0"), lambda: [run]) as server:
        cluster = find([f"127.0.0.1:{server.port}", "127.0.0.1:9"])
        (report,) = reports_on(cluster, native=False)
    assert report.stacks[0].role == "rank 0" and report.stacks[0].host  # other tests may have left children of this process
    assert list(cluster.problems) == ["127.0.0.1:9"]


def test_a_run_here_is_kept_as_ever(run: RunFolder) -> None:
    reports_on(find([str(run.path)]), native=False)
    assert kept_stacks(run) is not None
