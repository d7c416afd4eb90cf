"""Trainings on two nodes of a real Slurm that takes them away: each ends with the weights of one that nobody disturbed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm_cluster import Cluster, slurm_cluster, wait_for

from holdfast.probe.rows import last_rows
from holdfast.signals.run_folder import RunFolder

pytestmark = pytest.mark.cluster
SCRIPT = Path(__file__).with_name("ddp_digits.py")
EPOCHS = 20  # of 16 steps


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")) as started:
        yield started


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    out = tmp_path_factory.mktemp("undisturbed") / "out.json"
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT), str(out), str(EPOCHS), "0")
    cluster.run(sys.executable, *words)
    result: dict[str, object] = json.loads(out.read_text())
    assert result["steps"] == EPOCHS * 16 and result["samples"] == EPOCHS * 256
    return result


class Submitted:
    """A job of `holdfast launch slurm`, and its run."""

    def __init__(self, cluster: Cluster, folder: Path, *options: str, step_seconds: float) -> None:
        self.cluster, self.folder = cluster, folder
        words = ("-m", "holdfast", "launch", "slurm", "--name", "job", "--nodes", "2", *options)
        command = ("python", str(SCRIPT), "out.json", str(EPOCHS), str(step_seconds))
        answer = cluster.run(sys.executable, *words, "--", *command, cwd=folder).stdout
        self.number = re.findall(r"job (\d+) submitted", answer)[0]
        self.run = RunFolder(folder / "runs" / f"job-{self.number}")

    def newest_step(self) -> int:
        """How far the newest training of rank 0 has come; -1 before its first step."""
        recordings = [one for one in self.run.recordings() if one.rank == 0] if self.run.path.is_dir() else []
        steps = last_rows(recordings[-1].path, "steps", ("step",), 1)["step"] if recordings else []
        return int(steps[-1]) if len(steps) else -1

    def starts(self) -> int:
        """How often it was started again by Slurm."""
        return int(self.cluster.job(self.number).get("Restarts", "0"))

    def wait_for_steps(self, number: int) -> None:
        wait_for(lambda: self.newest_step() >= number, f"step {number}: {self.log()}")

    def wait_until_queued_again(self) -> None:
        """Slurm waits two minutes before it starts a job again: the test ten seconds, as nodes refuse it at once."""
        self.wait_for_steps(0)
        wait_for(lambda: self.cluster.job(self.number).get("JobState") == "PENDING", "the job to be queued again")
        self.cluster.run("scontrol", "update", f"jobid={self.number}", "starttime=now+10")

    def result(self) -> dict[str, object]:
        wait_for(lambda: self.cluster.job(self.number).get("JobState") not in ("PENDING", "RUNNING", "COMPLETING"), "the end")
        assert self.cluster.job(self.number)["JobState"] == "COMPLETED", self.log()
        result: dict[str, object] = json.loads((self.folder / "out.json").read_text())
        return result

    def resumed_from(self) -> list[int]:
        return [int(step) for step in re.findall(r"training continues at step (\d+)", self.log())]

    def log(self) -> str:
        file = self.folder / f"job-{self.number}.log"
        return file.read_text() if file.exists() else ""


def test_a_job_saves_before_its_time_limit_and_resumes_until_it_is_done(
    cluster: Cluster, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    job = Submitted(cluster, tmp_path, "--time", "0:01:00", "--signal-before", "10", step_seconds=0.15)
    job.wait_until_queued_again()
    actions = [row for row in job.run.journal if row.get("kind") == "action" and row.get("action") == "stop"]
    assert {(row["rank"], row["state"], row["because"]) for row in actions} == {
        (0, "done", "preempted"),
        (1, "done", "preempted"),
    }
    assert len({row["at"] for row in actions}) == 1
    cluster.run("scontrol", "update", f"jobid={job.number}", "timelimit=10")
    assert job.result() == undisturbed
    assert job.starts() == 1 and set(job.resumed_from()) == {actions[0]["at"]}, job.log()


def test_a_preempted_job_loses_no_step(cluster: Cluster, undisturbed: dict[str, object], tmp_path: Path) -> None:
    job = Submitted(cluster, tmp_path, "--time", "10", step_seconds=0.15)
    job.wait_for_steps(20)
    urgent = cluster.run("sbatch", "--parsable", "--partition=high", "--nodes=2", "--exclusive", "--wrap", "true", cwd=tmp_path)
    job.wait_until_queued_again()
    wait_for(lambda: cluster.job(urgent.stdout.strip()).get("JobState") == "COMPLETED", "the other job")
    reached = job.newest_step()
    assert job.result() == undisturbed
    assert set(job.resumed_from()) == {reached + 1}, job.log()


def test_a_job_survives_a_node_that_goes_down(cluster: Cluster, undisturbed: dict[str, object], tmp_path: Path) -> None:
    job = Submitted(cluster, tmp_path, "--time", "10", step_seconds=0.15)
    job.wait_for_steps(20)
    cluster.run("holdfast", "save", str(job.run.path), check=False)
    cluster.power_off("node2")
    job.wait_until_queued_again()
    cluster.power_on("node2")
    assert job.result() == undisturbed
    assert job.starts() == 1, job.log()


def test_a_cancelled_job_stays_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    job = Submitted(cluster, tmp_path, "--time", "10", step_seconds=0.15)
    job.wait_for_steps(5)
    cluster.run("scancel", job.number)
    wait_for(lambda: cluster.job(job.number).get("JobState") in ("CANCELLED", "PENDING"), "the end")
    wait_for(lambda: not cluster.run("squeue", "-h", "--job", job.number, check=False).stdout, "the job to leave the queue")
    assert cluster.job(job.number)["JobState"] == "CANCELLED", job.log()
