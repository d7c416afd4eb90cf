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
    group.command("slurm", context_settings=_PASSED_ON)(slurm)
    group.command("kubernetes", context_settings=_PASSED_ON)(kubernetes)
    group.command("cloud", context_settings=_PASSED_ON)(cloud)
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


def kubernetes(
    context: typer.Context,
    image: Annotated[str, typer.Option(help="Container image with your script, torch and holdfast.")],
    volume: Annotated[str, typer.Option(metavar="CLAIM", help="Persistent volume claim for the runs, shared by all pods.")],
    nodes: Nodes = 1,
    gpus_per_node: Gpus = None,
    name: Name = None,
    runtime: Annotated[str, typer.Option(help="Cluster training runtime of Kubeflow.")] = "torch-distributed",
    signal_before: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="Grace time of an evicted pod, to save.")] = 120,
    policy: Policy = "heal",
    folder: Folder = "/runs",
    resume_args: ResumeArgs = None,
    restarts: Restarts = 3,
    output: Output = None,
    dry_run: DryRun = False,
) -> None:
    """Write a Kubeflow TrainJob: holdfast launch kubernetes --image my/image --volume runs --gpus-per-node 8 -- python train.py

    A pod that is evicted saves a checkpoint first. Started again, by Kubernetes or with the same name, the training resumes.
    """
    from holdfast.launch.kubernetes import train_job

    job = _job(context, name, nodes, gpus_per_node, policy, folder, resume_args, restarts)
    resource = train_job(job, image=image, volume=volume, runtime=runtime, grace_seconds=signal_before)
    file = output or Path(f"{job.name}.trainjob.yaml")
    if _show_or_write(resource, file, dry_run):
        print(f"{file} is written; start and watch it:")
        print(f"  kubectl create -f {file}")
        print(f"  kubectl get trainjob {job.name} --watch")


def cloud(
    context: typer.Context,
    volume: Annotated[str, typer.Option(help="Volume for the runs; it outlives the machines.")],
    engine: Annotated[str, typer.Option(help="sky (SkyPilot) or dstack.")] = "sky",
    gpu: Annotated[str | None, typer.Option(help="Kind of GPU: A100, H100, L4, …", show_default=False)] = None,
    nodes: Nodes = 1,
    gpus_per_node: Gpus = None,
    spot: Annotated[bool, typer.Option("--spot/--on-demand", help="Cheaper machines that can be taken away.")] = True,
    name: Name = None,
    policy: Policy = "heal",
    folder: Folder = "/runs",
    resume_args: ResumeArgs = None,
    restarts: Restarts = 3,
    output: Output = None,
    dry_run: DryRun = False,
) -> None:
    """Write a SkyPilot or dstack task, and start it: holdfast launch cloud --gpu A100 --volume runs -- python train.py

    If a spot machine is taken away, the training resumes on the next one from its newest verified checkpoint.
    """
    import shutil
    import subprocess

    from holdfast.errors import UsageError
    from holdfast.launch.cloud import dstack_task, sky_task

    if engine not in ("sky", "dstack"):
        raise UsageError(f"there is no engine {engine!r}.", fix="--engine sky or --engine dstack")
    if gpus_per_node is not None and gpu is None:
        raise UsageError("--gpus-per-node needs the kind of GPU.", fix=f"--gpu A100 --gpus-per-node {gpus_per_node}")
    job = _job(context, name, nodes, gpus_per_node or (1 if gpu else None), policy, folder, resume_args, restarts)
    make = sky_task if engine == "sky" else dstack_task
    file = output or Path(f"{job.name}.{engine}.yaml")
    if not _show_or_write(make(job, gpu=gpu, spot=spot, volume=volume), file, dry_run):
        return
    words = ["sky", "jobs", "launch", "-y", str(file)] if engine == "sky" else ["dstack", "apply", "-y", "-f", str(file)]
    if shutil.which(engine) is None:
        package = "skypilot" if engine == "sky" else "dstack"
        print(f"{file} is written; {engine} is not installed here. To start it:")
        print(f"  pip install {package}")
        print(f"  {' '.join(words)}")
        return
    raise typer.Exit(subprocess.run(words, check=False).returncode)


def _show_or_write(resource: dict[str, object], file: Path, dry_run: bool) -> bool:
    """Print or write it as YAML; whether it was written."""
    from holdfast.launch.job import as_yaml

    text = as_yaml(resource)
    if dry_run:
        print(text, end="")
    else:
        _write(file, text)
    return not dry_run


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
