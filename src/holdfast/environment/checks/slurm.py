"""Under Slurm: do the processors of a task suffice for its loader workers, and do tasks and cards go together?"""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.environment.check import Check, Fix, Verdict, note, ok, skipped, together, warning
from holdfast.environment.machine import Machine
from holdfast.units import count

_FEW = 2  # the training itself, and one worker


def ask(machine: Machine, environment: Mapping[str, str] = os.environ) -> Verdict:
    """What the job asked for against what a training needs."""
    if "SLURM_JOB_ID" not in environment:
        return skipped("not a Slurm job")
    per_task = _number(environment, "SLURM_CPUS_PER_TASK")
    tasks = _number(environment, "SLURM_NTASKS_PER_NODE") or _number(environment, "SLURM_NTASKS") or 1
    facts = {
        "cpus per task": per_task,
        "tasks": tasks,
        "processors here": machine.platform.affinity,
        "cards": len(machine.nvidia.cards),
    }
    verdicts = [
        _processors(per_task, machine),
        _tasks(tasks, len(machine.nvidia.cards)),
    ]
    reported = [verdict for verdict in verdicts if verdict is not None]
    return together(reported) if reported else ok(f"{count(per_task or 1, 'processor')} a task, {count(tasks, 'task')}", **facts)


def _processors(per_task: int | None, machine: Machine) -> Verdict | None:
    wanted = machine.workers + 1
    ask_for = Fix("ask for more in the job script", (f"#SBATCH --cpus-per-task={max(wanted, 8)}",))
    if per_task is None and machine.platform.affinity <= 1:
        return warning(
            "--cpus-per-task was not given, and the task has 1 processor: training and loading share it", ask_for, cpus=1
        )
    if per_task is not None and per_task < _FEW:
        return warning("1 processor a task: training and loading share it", ask_for, cpus=per_task)
    if per_task is not None and machine.plans.workers is not None and per_task < wanted:
        message = f"{per_task} processors a task for {count(machine.plans.workers, 'loader worker')} and the training"
        return warning(message, ask_for, cpus=per_task)
    if per_task is not None and per_task < machine.platform.affinity:
        message = (
            f"{per_task} processors a task, this step has {machine.platform.affinity}: srun hands --cpus-per-task on no more"
        )
        return note(message, Fix("hand it on", ("export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",)), cpus=per_task)
    return None


def _tasks(tasks: int, cards: int) -> Verdict | None:
    if cards > 1 and 1 < tasks != cards:
        fix = Fix("one task per GPU, or one task that starts torchrun", (f"#SBATCH --ntasks-per-node={cards}",))
        return warning(f"{tasks} tasks on a node with {cards} GPUs: some GPUs idle, or tasks share one", fix, tasks=tasks)
    return None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    digits = environment.get(name, "").partition("(")[0]
    return int(digits) if digits.isdigit() else None


CHECK = Check(name="slurm", asks="processors and tasks of the Slurm job", ask=ask, seconds=30.0)
