"""`holdfast launch slurm`: an sbatch file that a person can read, and its submission.

Slurm signals the batch shell before the time limit, and all steps before a preemption. `holdfast run --resume` saves between two
steps and exits with 75; the file then puts the job back into the queue, under the same number, and it resumes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import CommandNotFound, UsageError
from holdfast.launch.job import Job, Shell, script, seconds_of

_RENDEZVOUS = (
    *("--rdzv-backend", "c10d", "--rdzv-id", Shell("$SLURM_JOB_ID")),
    *("--rdzv-endpoint", Shell("$first_node:$port")),
)
_FIRST_NODE = """\
# Ranks meet on the first node, where this file runs.
first_node=$(hostname)
port=$((20000 + SLURM_JOB_ID % 20000))
"""
_RUN_ONCE = """\
run_on_all_nodes
"""
_RUN_SEVERAL_TIMES = """\
# A rank that fails ends all nodes; they start again together, from the newest verified checkpoint.
for attempt in $(seq {times}); do
  run_on_all_nodes
  case $code in 0|75) break ;; esac
done
"""
_TEXT = """\
#!/bin/bash
{options}
# Written by `holdfast launch slurm`. Submit it with: sbatch {file}

{setup}{first_node}run_on_all_nodes() {{
  {command} &
  step=$!
  while true; do
    signalled=; wait "$step"; code=$?
    [ "$signalled" ] || return "$code"  # a signal ends `wait`, not the step
  done
}}

# Before the time limit: all ranks save a checkpoint between two steps, and srun ends with 75.
# Only `holdfast run` of this node gets the signal, and speaks for all of them.
trap 'signalled=yes; kill -USR1 "$(cat {pid_file})"' USR1
trap 'signalled=yes; kill -TERM "$(cat {pid_file})"' TERM
{run}
# 75 means: start again. The job keeps its number, so it finds its run and resumes. A cancelled job stays cancelled.
if [ "$code" = 75 ] && [ "$(squeue --noheader --job "$SLURM_JOB_ID" --format %T)" = RUNNING ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is asked of Slurm beside nodes and GPUs."""

    time: str
    signal_seconds: int = 120
    partition: str | None = None
    account: str | None = None
    options: tuple[str, ...] = ()  # further ones, as sbatch takes them
    setup: tuple[str, ...] = ()  # shell lines before the training


def sbatch_file(job: Job, limits: Limits, file: str) -> str:
    """The text of the sbatch file."""
    if seconds_of(limits.time) <= limits.signal_seconds:
        problem = f"a time limit of {limits.time} is over before the signal {limits.signal_seconds} s ahead of it."
        raise UsageError(problem, fix="raise --time, or lower --signal-before")
    several = job.nodes > 1
    run = f"{job.name}-$SLURM_JOB_ID"
    command = script(job.lines(Shell(run), _RENDEZVOUS), before="srun --kill-on-bad-exit=1")
    return _TEXT.format(
        options="\n".join(f"#SBATCH {option}" for option in _options(job, limits)),
        file=shlex.quote(file),
        pid_file=f"{shlex.quote(job.folder)}/{run}/supervisor.pid",
        setup="".join(f"{line}\n" for line in limits.setup),
        first_node=_FIRST_NODE if several else "",
        command=command.replace("\n", "\n  "),
        run=_RUN_SEVERAL_TIMES.format(times=job.restarts + 1) if several else _RUN_ONCE,
    )


def _options(job: Job, limits: Limits) -> list[str]:
    options = {
        "job-name": job.name,
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "gpus-per-node": job.gpus,
        "time": limits.time,
        "partition": limits.partition,
        "account": limits.account,
        "signal": f"B:USR1@{limits.signal_seconds}",
        "output": f"{job.name}-%j.log",
        "open-mode": "append",
    }
    return [*(f"--{name}={value}" for name, value in options.items() if value is not None), "--requeue", *limits.options]


def submit(file: Path) -> str:
    """Submit a file; the number of the job."""
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        problem = f"there is no sbatch on this machine; {file} is written."
        raise CommandNotFound(problem, fix=f"copy {file} to a login node of the cluster, then there: sbatch {file.name}")
    done = _run([sbatch, "--parsable", str(file)])
    if done.returncode:
        why = done.stderr.strip().removeprefix("sbatch: error: ").splitlines() or ["it gave no reason"]
        no_cluster = any("resolve_ctls" in line or "contact slurm controller" in line for line in why)
        there = f"on a login node of the cluster: sbatch {file.name}"
        fix = there if no_cluster else f"change the option, or edit {file} and: sbatch {file}"
        raise UsageError(f"Slurm refused {file}: {why[0].rstrip('.')}.", fix=fix)
    return done.stdout.strip().partition(";")[0]


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SBATCH_")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
