"""Sharded states: written by all ranks as one checkpoint or none, and the same for whoever reads them."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import free_port
from watched_training import WarmPython, difference

from holdfast.checkpoints.manifest import kept_in
from holdfast.checkpoints.read import verify_checkpoint
from holdfast.errors import StorageError

VICTIM = Path(__file__).parents[1] / "victims/ranks_that_save.py"
FORKED_RANKS = str(Path(__file__).with_name("forked_ranks.py"))
STATE = ("model", "optimizer", "average", "lr")


class Ranks:
    """Starts the script on one or two ranks, forked from a process that has imported torch already."""

    def __init__(self, folder: Path, warm: WarmPython) -> None:
        self._folder, self._warm, self._count = folder, warm, 0

    def run(self, kind: str, store: Path, steps: int, *words: str, ranks: int = 2) -> list[dict[str, Any]]:
        """What each rank ends with."""
        out = self.start(kind, store, steps, *words, ranks=ranks)
        return [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(ranks)]

    def start(self, kind: str, store: Path, steps: int, *words: str, ranks: int = 2, out: Path | None = None) -> Path:
        """Run it to its end; the folder of what it tells."""
        self._count += 1
        out, folder = out or self._folder / f"out-{self._count}", self._folder / f"at-{self._count}"
        folder.mkdir()
        script, env = [str(VICTIM)], {"HOLDFAST_DEBUG": "raise"}
        if ranks == 2:
            script = [FORKED_RANKS, *script]
        elif kind != "plain":
            env |= {"WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        self._warm.run(folder, *script, kind, str(store), str(out), str(steps), *words, **env)
        return out


@pytest.fixture(scope="module")
def ranks(warm: WarmPython, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    warm.load("torch.distributed.checkpoint", "torch.distributed.fsdp")
    return Ranks(tmp_path_factory.mktemp("ranks"), warm)


def assert_same(one: dict[str, Any], other: dict[str, Any], *names: str) -> None:
    for name in names or STATE:
        assert difference(one[name], other[name], name) is None


def test_what_two_ranks_saved_is_the_same_for_two_for_one_and_for_none(ranks: Ranks, tmp_path: Path) -> None:
    saved = ranks.run("fsdp2", tmp_path, 3)
    assert saved[0]["troubles"] == saved[1]["troubles"] == []
    assert [kept.step for kept in kept_in(tmp_path)] == [2, 3]
    again = ranks.run("fsdp2", tmp_path, 0)
    alone, without = ranks.run("fsdp2", tmp_path, 0, ranks=1)[0], ranks.run("plain", tmp_path, 0, ranks=1)[0]
    for other in (*again, alone, without):
        assert other["first"] == 3
        assert_same(saved[0], other)
    for rank in (0, 1):  # each rank goes on with its own random numbers
        assert_same(saved[rank], again[rank], "random")


def test_what_one_process_or_one_rank_saved_is_the_same_for_two_ranks(ranks: Ranks, tmp_path: Path) -> None:
    for kind in ("plain", "fsdp2"):
        saved = ranks.run(kind, tmp_path / kind, 2, ranks=1)[0]
        for other in ranks.run("fsdp2", tmp_path / kind, 0):
            assert other["first"] == 2
            assert_same(saved, other)


def test_ddp_writes_once_and_one_process_can_go_on(ranks: Ranks, tmp_path: Path) -> None:
    saved = ranks.run("ddp", tmp_path, 2)
    again, alone = ranks.run("ddp", tmp_path, 0), ranks.run("plain", tmp_path, 0, ranks=1)[0]
    for other in (*again, alone):
        assert_same(saved[0], other)
    for rank in (0, 1):
        assert_same(saved[rank], again[rank], "random")
    assert [path.name for path in kept_in(tmp_path)[-1].path.iterdir() if "rank" in path.name] == []


def test_the_older_kind_of_sharding_is_resumed_on_the_same_number_of_ranks_and_refused_on_another(
    ranks: Ranks, tmp_path: Path
) -> None:
    saved = ranks.run("fsdp1", tmp_path, 2)
    for one, other in zip(saved, ranks.run("fsdp1", tmp_path, 0), strict=True):
        assert other["first"] == 2
        assert_same(one, other, "model", "optimizer", "lr", "random")
    assert_same(ranks.run("fsdp1", tmp_path, 4)[0], ranks.run("fsdp1", tmp_path / "whole", 4)[0], "model", "optimizer")
    with pytest.raises(AssertionError, match="on 2 ranks: only as many can resume"):
        ranks.run("plain", tmp_path, 0, "no-ema", ranks=1)


def test_a_save_in_progress_outlives_the_process_groups(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run("fsdp2", tmp_path, 1, "unclosed")
    assert [kept.step for kept in kept_in(tmp_path)] == [1]


def test_all_ranks_go_back_to_the_same_one_when_the_newest_is_damaged(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run("fsdp2", tmp_path, 2)
    part = kept_in(tmp_path)[-1].path / "shards/__1_0.distcp"
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)  # its length is right, and rank 1 alone would read it
    assert [end["first"] for end in ranks.run("fsdp2", tmp_path, 0)] == [1, 1]


def test_a_state_that_is_bad_on_one_rank_is_saved_by_none(ranks: Ranks, tmp_path: Path) -> None:
    ends = ranks.run("fsdp2", tmp_path, 2, "nan")
    assert [kept.step for kept in kept_in(tmp_path)] == [1]
    for end in ends:
        assert [(row["code"], row["step"]) for row in end["troubles"]] == [("checkpoint-non-finite", 2)]
        assert "model.0.weight on rank 1" in end["troubles"][0]["evidence"]["error"]


def test_odd_sharded_states_are_restored_as_they_were(ranks: Ranks, warm: WarmPython, tmp_path: Path) -> None:
    script = VICTIM.with_name("ranks_with_odd_states.py")
    warm.run(tmp_path, FORKED_RANKS, str(script), str(tmp_path), str(tmp_path), HOLDFAST_DEBUG="raise")
    for rank in (0, 1):
        told = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        assert told["state before the first step"] == told["restored before the first step"] == 0, "a save is no step"
        assert told["states"] == (4, 4), "what never got a gradient has no state"
        assert told["lr"] == 0.1
        (groups, num_states), (weights, num_states_too) = told["refused"], told["refused too"]
        assert "1 parameter groups and has 2" in groups and "does not hold" in weights, "another model is refused"
        assert num_states == num_states_too == 0, "with nothing changed"
        for case in ("accumulated", "two models"):
            saved, restored = told[case]
            assert all(torch.equal(one, other) for one, other in zip(saved, restored, strict=True)), case


@pytest.mark.slow
def test_ranks_that_are_killed_while_saving_leave_a_clean_newest_one_and_go_on_from_it(ranks: Ranks, tmp_path: Path) -> None:
    moments, store, steps, left = random.Random(4), tmp_path / "store", 40, 0
    for kill in range(10):
        out = tmp_path / f"out-{kill}"
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(ranks.start, "fsdp2", store, steps, out=out)
            pids = [int(wait_for(out / f"{rank}.saving")) for rank in (0, 1)]
            time.sleep(moments.uniform(0.0, 0.3))
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # it was at its end
                    os.kill(pid, signal.SIGKILL)
            assert "AssertionError: [9, 9]" in str(running.exception())  # by signal 9, both
        left += len(list(store.glob(".new-*")))
        assert_each_is_clean(store)
    assert left, "no save was interrupted"
    assert_same(ranks.run("fsdp2", tmp_path / "whole", steps)[0], ranks.run("fsdp2", store, steps)[0])


def wait_for(path: Path) -> str:
    end = time.monotonic() + 600
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return path.read_text()


def assert_each_is_clean(store: Path) -> None:
    for kept in kept_in(store):
        try:
            verify_checkpoint(kept.path)
        except StorageError as error:
            pytest.fail(f"{kept.path} has a name and is not clean: {error}")
