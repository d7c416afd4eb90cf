"""Memory really runs out: one process goes on with the same gradients; ranks that wait for each other end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from watched_training import WarmPython

from holdfast.signals.run_folder import RunFolder

VICTIMS = Path(__file__).parents[1] / "victims"
FORKED_RANKS = str(Path(__file__).with_name("forked_ranks.py"))


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space of the process")
def test_a_training_goes_on_when_the_host_has_no_memory_for_the_whole_batch(warm: WarmPython, tmp_path: Path) -> None:
    printed = warm.run(tmp_path, str(VICTIMS / "host_memory_limit.py"), str(tmp_path), "heal")
    *losses, sizes = [line for line in printed.splitlines() if not line.startswith("holdfast")]
    assert len(losses) == 2 and 1 < int(sizes.split()[-1]) < 32768
    entries = list(RunFolder(tmp_path / "limited").journal)
    findings = [entry for entry in entries if entry["kind"] == "finding"]
    assert {entry["code"] for entry in findings} == {"host-out-of-memory"}
    assert all(entry["evidence"]["asked_for"] > 1 << 20 and "free" in entry["evidence"] for entry in findings)
    parts = [entry["settings"]["parts"] for entry in entries if entry["kind"] == "action"]
    assert parts and parts == [2**number for number in range(1, len(parts) + 1)]


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space of the process")
def test_a_training_that_is_only_observed_ends_as_it_would_have(warm: WarmPython, tmp_path: Path) -> None:
    code, printed = warm.end_of(tmp_path, str(VICTIMS / "host_memory_limit.py"), str(tmp_path), "observe")
    assert code == 1 and "DefaultCPUAllocator" in printed.splitlines()[-1]
    (finding,) = RunFolder(tmp_path / "limited").journal
    assert (finding["code"], finding["severity"]) == ("host-out-of-memory", "critical")


@pytest.fixture(scope="module")
def ranks(warm: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both ranks tell of all cases, trained one after the other in the same two processes."""
    folder = tmp_path_factory.mktemp("ranks")
    warm.run(folder, FORKED_RANKS, str(VICTIMS / "ranks_out_of_memory.py"), str(folder), "fits", "split", "runs-out")
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in (0, 1)]


def test_ranks_that_split_their_batches_train_as_with_whole_ones(ranks: list[dict[str, Any]]) -> None:
    for told in ranks:
        assert told["split"]["outcome"] == "trained" and told["split"]["seen"][-4:] == [3, 3, 2, 2]
        assert told["fits"]["seen"][-1] == 10 and told["fits"]["journal"] == []
        torch.testing.assert_close(told["split"]["weights"], told["fits"]["weights"], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(told["split"]["losses"], told["fits"]["losses"], rtol=1e-5, atol=1e-6)
    assert torch.equal(ranks[0]["split"]["weights"], ranks[1]["split"]["weights"])


def test_under_ddp_running_out_is_raised_and_the_finding_says_why_the_step_was_not_repeated(ranks: list[dict[str, Any]]) -> None:
    for told in ranks:
        assert told["runs-out"]["outcome"].startswith("OutOfMemoryError")
        (finding,) = told["runs-out"]["journal"]
        assert (finding["code"], finding["severity"]) == ("gpu-out-of-memory", "critical")
        assert "other ranks wait" in finding["evidence"]["not_repeated_because"]
