"""Memory really runs out, in one process and in one rank of two: the training goes on with the same gradients."""

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
PLACES = ("before", "forward", "loss", "backward")
ALIKE = [  # where rank 1 runs out, and the run without that to compare with
    *((place, "nowhere") for place in PLACES),
    *((f"{place}-later", "nowhere-later") for place in ("before", "backward")),
    *((f"{place}-accumulate", "nowhere-accumulate") for place in ("forward", "backward")),
    ("backward-accumulate-in-place", "nowhere-accumulate"),
    ("backward-in-place", "nowhere"),
]
NORMS = tuple(f"{place}-norm" for place in PLACES)


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
    cases = [*sorted({case for pair in ALIKE for case in pair}), *NORMS, "never-fits"]
    warm.run(folder, FORKED_RANKS, str(VICTIMS / "ranks_out_of_memory.py"), str(folder), *cases)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in (0, 1)]


@pytest.mark.parametrize(("case", "healthy"), ALIKE)
def test_when_one_rank_runs_out_both_split_alike_and_train_on_as_without_it(
    ranks: list[dict[str, Any]], case: str, healthy: str
) -> None:
    for told in ranks:
        assert told[case]["outcome"] == "trained" and told[case]["parts"] == 4
        assert told[case]["seen"][-4:] == [3, 3, 2, 2] and told[healthy]["seen"][-1] == 10
        torch.testing.assert_close(told[case]["weights"], told[healthy]["weights"], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(told[case]["losses"], told[healthy]["losses"], rtol=1e-5, atol=1e-6)
        assert any(entry.get("settings") == {"parts": 4} for entry in told[case]["journal"])
    assert torch.equal(ranks[0][case]["weights"], ranks[1][case]["weights"])


def test_buffers_that_are_sent_round_stay_in_step_wherever_a_rank_runs_out(ranks: list[dict[str, Any]]) -> None:
    for case in NORMS:
        for told in ranks:
            assert told[case]["outcome"] == "trained"
            assert torch.equal(told[case]["weights"], ranks[0][NORMS[0]]["weights"])


def test_when_one_rank_cannot_split_further_all_of_them_end(ranks: list[dict[str, Any]]) -> None:
    first, second = (told["never-fits"]["outcome"] for told in ranks)
    assert first.startswith("DoesNotFit: another rank ran out of memory")
    assert second.startswith("DoesNotFit: memory ran out with a single sample of a batch of 10")


def test_healthy_ranks_record_nothing(ranks: list[dict[str, Any]]) -> None:
    for told in ranks:
        assert told["nowhere"]["journal"] == [] and told["nowhere"]["parts"] == 1
