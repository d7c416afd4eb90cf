"""`holdfast launch slurm|kubernetes|cloud`: the files with which other machines start a training that resumes by itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from holdfast.launch.job import Job

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": False, "allow_interspersed_args": False}
Nodes = Annotated[int, typer.Option("--nodes", min=1, metavar="N", help="Machines.")]
Gpus = Annotated[
    int | None,
    typer.Option("--gpus-per-node", min=1, metavar="N", help="GPUs of each; one rank for each GPU.", show_default=False),
]
Name = Annotated[str | None, typer.Option(help="Name of the job. (default: the script's name)", show_default=False)]
Policy = Annotated[str, typer.Option(help="What Holdfast may do: heal, or a file with your own policies.")]
Folder = Annotated[str, typer.Option(help="Folder for runs, which all machines share.")]
ResumeArgs = Annotated[
    str | None,
    typer.Option(metavar="WORDS", help='How the script resumes: "--resume {checkpoint}".', show_default=False),
]
Restarts = Annotated[int, typer.Option(min=0, help="Restarts after a failure or a hang, before the job fails.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the file, and write and submit nothing.")]
Output = Annotated[Path | None, typer.Option(metavar="FILE", help="The file to write.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the group and its verbs."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Start a training on Slurm, Kubernetes or in the cloud; it resumes when its machine is taken away.",
    )
    for name, verb in {"slurm": slurm}.items():
        group.command(name, context_settings=_PASSED_ON)(verb)
    app.add_typer(group, name="launch")


def slurm(
    context: typer.Context,
    time: Annotated[str, typer.Option(metavar="H:MM:SS", help="Time limit of the job; it is queued again until it is done.")],
    nodes: Nodes = 1,
    gpus_per_node: Gpus = None,
    name: Name = None,
    partition: Annotated[str | None, typer.Option(help="Partition.", show_default=False)] = None,
    account: Annotated[str | None, typer.Option(help="Account.", show_default=False)] = None,
    signal_before: Annotated[
        int, typer.Option(min=1, metavar="SECONDS", help="How long before the time limit the checkpoint is saved.")
    ] = 120,
    sbatch: Annotated[
        list[str] | None, typer.Option(metavar="OPTION", help="Another option of sbatch: --sbatch=--mem=64G. Repeatable.")
    ] = None,
    setup: Annotated[
        list[str] | None, typer.Option(metavar="LINE", help="Shell line before the training: 'module load cuda'. Repeatable.")
    ] = None,
    policy: Policy = "heal",
    folder: Folder = "runs",
    resume_args: ResumeArgs = None,
    restarts: Restarts = 3,
    output: Output = None,
    dry_run: DryRun = False,
) -> None:
    """Write an sbatch file and submit it: holdfast launch slurm --nodes 2 --gpus-per-node 8 --time 4:00:00 -- python train.py

    Before the time limit and before a preemption the training saves a checkpoint between two steps. The job then queues again
    and resumes from it.
    """
    from holdfast.launch.slurm import Limits, sbatch_file, submit

    job = _job(context, name, nodes, gpus_per_node, policy, folder, resume_args, restarts)
    limits = Limits(
        time=time,
        signal_seconds=signal_before,
        partition=partition,
        account=account,
        options=tuple(sbatch or ()),
        setup=tuple(setup or ()),
    )
    file = output or Path(f"{job.name}.sbatch")
    text = sbatch_file(job, limits, str(file))
    if dry_run:
        print(text, end="")
        return
    _write(file, text)
    number = submit(file)
    run = f"{job.name}-{number}"
    print(f"job {number} submitted ({file}); run {run}, output in {run}.log")
    print(f"watch it: holdfast tail {run}; state: squeue --job {number}")


def _job(
    context: typer.Context,
    name: str | None,
    nodes: int,
    gpus: int | None,
    policy: str,
    folder: str,
    resume_args: str | None,
    restarts: int,
) -> Job:
    from holdfast.launch.job import Job, default_name

    command = tuple(context.args)
    return Job(
        command=command,
        name=name or default_name(command),
        nodes=nodes,
        gpus=gpus,
        policy=policy,
        folder=folder,
        resume_args=resume_args,
        restarts=restarts,
    )


def _write(file: Path, text: str) -> None:
    from holdfast.errors import StorageError

    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{file} cannot be written: {error.strerror}.", fix="--output FILE, in a folder of yours") from None
