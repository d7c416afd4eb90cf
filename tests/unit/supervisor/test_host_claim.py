"""Who samples the machine: one outside of a run, and whatever else was put into its `host` folder before does not matter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from holdfast_run import wait_until

from holdfast.probe.stacks.frames import ProcessStacks
from holdfast.probe.stacks.keep import keep_stacks, kept_times
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor import host

TABLE = "host/processes/000000.seg"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setattr(host, "_EVERY_SECONDS", 0.1)
    return RunFolder.create(tmp_path, "a")


def test_stacks_that_were_taken_before_the_first_step_do_not_end_the_sampling(run: RunFolder) -> None:
    keep_stacks(run, [ProcessStacks(os.getpid(), "rank 0", 0, problem="asked too early")], when=1000.0)
    run.claim(0)
    sampler = host.HostSampler(run, os.getpid(), Trouble(run.journal))
    sampler.start()
    wait_until(lambda: (run.path / TABLE).exists())
    sampler.stop()
    assert kept_times(run) == [1000.0] and list(run.journal) == []


def test_of_two_outsides_of_a_run_one_samples(run: RunFolder) -> None:
    run.claim(0)
    first, second = (host.HostSampler(run, os.getpid(), Trouble(run.journal)) for _ in range(2))
    first.start()
    wait_until(lambda: first._processes is not None)
    second.start()
    second._thread.join(10)
    first.stop()
    assert second._processes is None and not second._thread.is_alive()
    assert list(run.journal) == []
