"""The sbatch file says what was asked for, is valid shell, and passes the user's words on unchanged."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from holdfast_run import typed

from holdfast.errors import UsageError
from holdfast.launch.job import Job, default_name, seconds_of
from holdfast.launch.slurm import Limits, sbatch_file

TRAIN = ("python", "train.py", "--lr", "0.1")


def written(*command: str, nodes: int = 1, gpus: int | None = None, **limits: object) -> str:
    job = Job(command=command or TRAIN, name="train", nodes=nodes, gpus=gpus)
    return sbatch_file(job, Limits(**{"time": "4:00:00", **limits}), "train.sbatch")  # type: ignore[arg-type]


def options_in(text: str) -> dict[str, str]:
    lines = (line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH"))
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def words_of(text: str) -> list[str]:
    """The words after `holdfast run … --`."""
    command = re.findall(r"srun.*?&\n", text, re.DOTALL)[0].removesuffix("&\n").replace("\\\n", " ")
    words = shlex.split(command)
    return words[words.index("--") + 1 :]


def test_it_asks_slurm_for_the_resources_a_signal_and_a_requeue() -> None:
    text = written(nodes=2, gpus=8, partition="a100", options=("--mem=64G",), signal_seconds=90)
    options = options_in(text)
    assert options["nodes"] == "2" and options["gpus-per-node"] == "8" and options["ntasks-per-node"] == "1"
    assert options["time"] == "4:00:00" and options["partition"] == "a100" and options["mem"] == "64G"
    assert options["signal"] == "B:USR1@90" and "requeue" in options and "account" not in options


@pytest.mark.parametrize(("nodes", "gpus"), [(1, None), (1, 8), (2, 8)])
def test_the_shell_can_read_it(nodes: int, gpus: int | None) -> None:
    text = written(nodes=nodes, gpus=gpus, setup=("module load cuda",))
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert "\nmodule load cuda\n" in text


def test_one_process_runs_as_it_was_typed_and_several_through_torchrun() -> None:
    assert words_of(written()) == list(TRAIN)
    assert words_of(written(gpus=8)) == [
        *("python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "8", "train.py", "--lr", "0.1"),
    ]
    several = words_of(written(nodes=2, gpus=8))
    assert several[3:] == [
        *("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-id", "$SLURM_JOB_ID"),
        *("--rdzv-endpoint", "$first_node:$port", "--nproc-per-node", "8", "train.py", "--lr", "0.1"),
    ]
    assert words_of(written("torchrun", "--max-restarts", "2", "train.py", nodes=2))[-3:] == ["--max-restarts", "2", "train.py"]
    assert words_of(written("python", "-m", "my.training", gpus=2))[-2:] == ["-m", "my.training"]


def test_what_the_user_typed_is_not_replaced_by_the_shell() -> None:
    odd = ("python", "train.py", "$HOME", "a b", "it's", "`date`")
    command = written(*odd).split("-- \\\n")[1].split(" &\n")[0]
    printed = subprocess.run(["bash", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == list(odd)


def test_a_command_that_torchrun_cannot_start_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="bash cannot be started with torchrun"):
        written("bash", "run.sh", nodes=2)


def test_a_time_limit_shorter_than_the_signal_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="over before the signal 120 s ahead"):
        written(time="0:01:00")
    with pytest.raises(UsageError, match="not a time limit"):
        written(time="four hours")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 5400), ("5:30", 330), ("4:00:00", 14400), ("1-12", 129600), ("1-12:30:00", 131400)]
)
def test_times_are_read_as_slurm_reads_them(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


def test_a_job_is_named_after_its_script() -> None:
    assert default_name(("python", "src/train_big.py", "--x")) == "train_big"
    assert default_name(("python", "-m", "my.training")) == "my"


def test_without_slurm_the_file_is_written_and_the_fix_says_where_it_belongs(tmp_path: Path) -> None:
    done = typed("launch", "slurm", "--time", "60", "--", *TRAIN, folder=tmp_path, PATH="/usr/bin/nothing")
    assert done.returncode != 0 and "there is no sbatch on this machine; train.sbatch is written" in done.stderr
    assert "sbatch train.sbatch" in done.stderr and options_in((tmp_path / "train.sbatch").read_text())["time"] == "60"


def test_a_dry_run_writes_nothing_and_no_command_is_an_error(tmp_path: Path) -> None:
    done = typed("launch", "slurm", "--time", "60", "--dry-run", "--", *TRAIN, folder=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("#!/bin/bash\n") and not list(tmp_path.glob("*.sbatch"))
    assert "there is no command to launch" in typed("launch", "slurm", "--time", "60", folder=tmp_path).stderr
    heal = typed("launch", "slurm", "--time", "60", "--policy", "guard", "--", *TRAIN, folder=tmp_path)
    assert "saves no checkpoint" in heal.stderr and "--policy heal" in heal.stderr
