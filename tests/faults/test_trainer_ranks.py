"""The callbacks of Lightning, Hugging Face and Accelerate with two ranks: one record, one stop, one checkpoint to resume from."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from holdfast_run import VICTIMS, environment, run
from trained_with import cut_short
from watched_training import Recorded

from holdfast.signals.run_folder import RunFolder

pytestmark = pytest.mark.slow
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
RANKS = (0, 1)


@dataclass(frozen=True)
class Trainer:
    """A script, the metric of its evaluations, its checkpoint of step 16 and the one before, and batches in each step."""

    script: str
    metric: str
    newest: str
    before: str
    batches: int = 1


TRAINERS = {
    "lightning": Trainer("lightning_trainer.py", "val_acc", "saved/epoch=1-step=16.ckpt", "saved/epoch=1-step=12.ckpt"),
    "transformers": Trainer(
        "hugging_face_trainer.py", "eval_loss", "saved/checkpoint-16/model.safetensors", "saved/checkpoint-12", 2
    ),
    "accelerate": Trainer("accelerate_loop.py", "val_loss", "saved/step_16/model.safetensors", "saved/step_12"),
}


@dataclass(frozen=True)
class Trained:
    """A training of 30 steps by two ranks under `holdfast run`; and one by torchrun alone, killed at step 17 and resumed."""

    trainer: Trainer
    folder: Path
    whole: dict[int, dict[str, Any]]
    resumed: dict[int, dict[str, Any]]

    def ids(self, name: str, rank: int) -> list[list[int]]:
        """The samples of each batch."""
        lines = (self.folder / f"{name}-{rank}").read_text(encoding="utf-8").splitlines()
        return [[int(word) for word in line.split()] for line in lines]

    def evaluations(self, name: str) -> list[tuple[int, int]]:
        """Step and epoch of each evaluation, over all ranks."""
        recorded = Recorded(RunFolder.open(self.folder / "runs" / name))
        assert recorded.names == ["rank-0", "rank-1"]
        rows = [row for rank in recorded.names for row in recorded.table("evaluations", rank).where(name=self.trainer.metric)]
        return [(row["step"], row["epoch"]) for row in rows]


def ends(printed: str) -> dict[int, dict[str, Any]]:
    """What each rank printed last."""
    found = [json.loads(text) for text in re.findall(r"\{\"from\".*?\}", printed)]  # two may share a line
    return {end.pop("rank"): end for end in found}


@pytest.fixture(scope="module", params=TRAINERS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    trainer, folder = TRAINERS[request.param], tmp_path_factory.mktemp(request.param)
    words = (*TORCHRUN, str(VICTIMS / trainer.script))

    def alone(*more: str) -> subprocess.CompletedProcess[str]:
        env = environment(folder, **OFFLINE)
        return subprocess.run([*words, *more], cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)

    (folder / "whole").mkdir()
    done = run(
        folder / "whole", "--folder", str(folder / "runs"), "--name", "all", *words, "--ids", str(folder / "all"), env=OFFLINE
    )
    assert done.returncode == 0, done.stderr
    killed = alone("--kill-at", "17", "--ids", "killed")
    assert killed.returncode != 0 and "SIGKILL" in killed.stderr, killed.stderr
    cut_short(folder / trainer.newest)
    resumed = alone("--resume", "--ids", "resumed")
    assert resumed.returncode == 0, resumed.stderr
    return Trained(trainer, folder, ends(done.stdout), ends(resumed.stdout))


def test_evaluations_of_two_ranks_are_recorded_once(trained: Trained) -> None:
    assert trained.evaluations("all") == [(10, 0), (20, 1), (30, 2)]


def test_two_ranks_that_resume_share_one_run_and_record_their_evaluations_once(trained: Trained) -> None:
    assert len([path for path in (trained.folder / "runs").iterdir() if not path.is_symlink()]) == 3, "whole, killed, resumed"
    assert trained.evaluations("latest") == [(20, 1), (30, 2)]


def test_every_rank_resumes_from_the_checkpoint_before_a_torn_one(trained: Trained) -> None:
    assert {rank: trained.resumed[rank]["from"] for rank in RANKS} == dict.fromkeys(RANKS, trained.trainer.before)


def test_every_rank_resumes_with_its_very_next_samples(trained: Trained) -> None:
    done, per_epoch = 12 * trained.trainer.batches, 10 * trained.trainer.batches
    for epoch in range(3):
        used = [trained.ids("all", rank)[epoch * per_epoch : (epoch + 1) * per_epoch] for rank in RANKS]
        assert sorted(sample for rank in used for batch in rank for sample in batch) == [*range(160)]
    for rank in RANKS:
        assert trained.ids("resumed", rank) == trained.ids("all", rank)[done:]


def test_two_ranks_that_were_killed_and_resumed_end_with_the_same_weights(trained: Trained) -> None:
    whole, resumed = ({rank: {**end, "from": None} for rank, end in ends.items()} for ends in (trained.whole, trained.resumed))
    assert whole[0]["step"] == 30 and whole[0]["weights"] == whole[1]["weights"]
    assert resumed == whole


@pytest.mark.parametrize("name", TRAINERS)
def test_heal_stops_two_ranks_by_the_trainers_means(name: str, tmp_path: Path) -> None:
    words = (*TORCHRUN, str(VICTIMS / TRAINERS[name].script), "--epochs", "400", "--save-every", "100000")
    done = run(tmp_path, "--policy", "heal", "--patience", "3", "--name", "a", "--", *words, env=OFFLINE)
    assert done.returncode == 0, done.stderr
    assert "has not improved for 3 evaluations" in done.stderr
    end = ends(done.stdout)
    assert end[0]["stopped"] and end[0] == end[1], "both ranks end after the same step, with the same weights"
    if name != "accelerate":  # whose script saves itself
        assert [*(tmp_path / "saved").iterdir()], "saved by the trainer"
