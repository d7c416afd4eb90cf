"""`holdfast launch slurm|kubernetes|cloud`: the files with which other machines start a training that resumes by itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from holdfast.launch.job import Job

_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": False, "allow_interspersed_args": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What all launchers take: the job, the file to write, and whether to write it."""

    job: Job
    output: Path | None
    dry_run: bool


def _common(
    nodes: Annotated[int, typer.Option("--nodes", min=1, metavar="N", help="Machines.")] = 1,
    gpus_per_node: Annotated[
        int | None,
        typer.Option("--gpus-per-node", min=1, metavar="N", help="GPUs of each; one rank for each GPU.", show_default=False),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the job. (default: the script's name)", show_default=False)] = None,
    policy: Annotated[str, typer.Option(help="What Holdfast may do: heal, or a file with your own policies.")] = "heal",
    folder: Annotated[str, typer.Option(help="Folder for runs, which all machines share.")] = "/runs",
    resume_args: Annotated[
        str | None,
        typer.Option(metavar="ARGS", help='How the script resumes: "--resume {checkpoint}".', show_default=False),
    ] = None,
    restarts: Annotated[int, typer.Option(min=0, help="Restarts after a failure or a hang, before the job fails.")] = 3,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="The file to write.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the file, and write and submit nothing.")] = False,
) -> None:
    """The options that the verbs share."""


def _launcher(verb: Callable[..., None], **defaults: str) -> Callable[..., None]:
    """A verb with its own options and the shared ones; it is called with a `Launch` and its own."""
    own = list(inspect.signature(verb, eval_str=True).parameters.values())[1:]
    shared = [
        parameter.replace(default=defaults.get(parameter.name, parameter.default))
        for parameter in inspect.signature(_common, eval_str=True).parameters.values()
    ]

    @functools.wraps(verb)
    def command(context: typer.Context, **values: Any) -> None:
        from holdfast.launch.job import Job, default_name

        mine = {parameter.name: values.pop(parameter.name) for parameter in own}
        output, dry_run = values.pop("output"), values.pop("dry_run")
        command_line, gpus = tuple(context.args), values.pop("gpus_per_node")
        values["name"] = values["name"] or default_name(command_line)
        verb(Launch(job=Job(command=command_line, gpus=gpus, **values), output=output, dry_run=dry_run), **mine)

    first = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *shared)]
    command.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (first, *parameters)}
    return command


def register(app: typer.Typer) -> None:
    """Add the group and its verbs."""
    group = typer.Typer(
        no_args_is_help=True,
        help="Start a training on Slurm, Kubernetes or in the cloud; it resumes when its machine is taken away.",
    )
    group.command("slurm", context_settings=_PASSED_ON)(_launcher(slurm, folder="runs"))
    group.command("kubernetes", context_settings=_PASSED_ON)(_launcher(kubernetes))
    group.command("cloud", context_settings=_PASSED_ON)(_launcher(cloud))
    app.add_typer(group, name="launch")


def slurm(
    launch: Launch,
    time: Annotated[str, typer.Option(metavar="H:MM:SS", help="Time limit of the job; it is queued again until it is done.")],
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
) -> None:
    """Write an sbatch file and submit it: holdfast launch slurm --nodes 2 --gpus-per-node 8 --time 4:00:00 -- python train.py

    Before the time limit and before a preemption the training saves a checkpoint between two steps. The job then queues again
    and resumes from it.
    """
    from holdfast.launch.slurm import Limits, sbatch_file, submit

    job = launch.job
    limits = Limits(
        time=time,
        signal_seconds=signal_before,
        partition=partition,
        account=account,
        options=tuple(sbatch or ()),
        setup=tuple(setup or ()),
    )
    file = launch.output or Path(f"{job.name}.sbatch")
    text = sbatch_file(job, limits, str(file))
    if launch.dry_run:
        print(text, end="")
        return
    _write(file, text)
    number = submit(file)
    run = f"{job.name}-{number}"
    print(f"job {number} submitted ({file}); run {run}, output in {run}.log")
    print(f"watch it: holdfast tail {run}; state: squeue --job {number}")


def kubernetes(
    launch: Launch,
    image: Annotated[str, typer.Option(help="Container image with your script, torch and holdfast.")],
    volume: Annotated[str, typer.Option(metavar="CLAIM", help="Persistent volume claim for the runs, shared by all pods.")],
    runtime: Annotated[str, typer.Option(help="Cluster training runtime of Kubeflow.")] = "torch-distributed",
    signal_before: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="Grace time of an evicted pod, to save.")] = 120,
) -> None:
    """Write a Kubeflow TrainJob: holdfast launch kubernetes --image my/image --volume runs --gpus-per-node 8 -- python train.py

    A pod that is evicted saves a checkpoint first. Started again, by Kubernetes or with the same name, the training resumes.
    """
    from holdfast.launch.kubernetes import train_job

    job = launch.job
    resource = train_job(job, image=image, volume=volume, runtime=runtime, grace_seconds=signal_before)
    file = launch.output or Path(f"{job.name}.trainjob.yaml")
    if _show_or_write(resource, file, launch.dry_run):
        print(f"{file} is written; start and watch it:")
        print(f"  kubectl create -f {file}")
        print(f"  kubectl get trainjob {job.name} --watch")


def cloud(
    launch: Launch,
    volume: Annotated[str, typer.Option(help="Volume for the runs; it outlives the machines.")],
    engine: Annotated[str, typer.Option(help="sky (SkyPilot) or dstack.")] = "sky",
    gpu: Annotated[str | None, typer.Option(help="Kind of GPU: A100, H100, L4, …", show_default=False)] = None,
    spot: Annotated[bool, typer.Option("--spot/--on-demand", help="Cheaper machines that can be taken away.")] = True,
) -> None:
    """Write a SkyPilot or dstack task, and start it: holdfast launch cloud --gpu A100 --volume runs -- python train.py

    If a spot machine is taken away, the training resumes on the next one from its newest verified checkpoint.
    """
    from holdfast.errors import UsageError
    from holdfast.launch.cloud import task

    if engine not in ("sky", "dstack"):
        raise UsageError(f"there is no engine {engine!r}.", fix="--engine sky or --engine dstack")
    if launch.job.gpus is not None and gpu is None:
        raise UsageError("--gpus-per-node needs the kind of GPU.", fix=f"--gpu A100 --gpus-per-node {launch.job.gpus}")
    job = replace(launch.job, gpus=launch.job.gpus or (1 if gpu else None))
    made = task(engine, job, gpu=gpu, spot=spot, volume=volume)
    raise typer.Exit(start_task(engine, made, job.name, output=launch.output, dry_run=launch.dry_run))


def start_task(engine: str, made: dict[str, object], name: str, *, output: Path | None = None, dry_run: bool = False) -> int:
    """Write a task of SkyPilot or dstack and start it; where that is not installed, say how. The exit code."""
    import shutil
    import subprocess

    file = output or Path(f"{name}.{engine}.yaml")
    if not _show_or_write(made, file, dry_run):
        return 0
    command = ["sky", "jobs", "launch", "-y", str(file)] if engine == "sky" else ["dstack", "apply", "-y", "-f", str(file)]
    if shutil.which(engine) is None:
        package = "skypilot" if engine == "sky" else "dstack"
        print(f"{file} is written; {engine} is not installed here. To start it:")
        print(f"  pip install {package}")
        print(f"  {' '.join(command)}")
        return 0
    return subprocess.run(command, check=False).returncode


def _show_or_write(resource: dict[str, object], file: Path, dry_run: bool) -> bool:
    """Print or write it as YAML; whether it was written."""
    from holdfast.launch.job import as_yaml

    text = as_yaml(resource)
    if dry_run:
        print(text, end="")
    else:
        _write(file, text)
    return not dry_run


def _write(file: Path, text: str) -> None:
    from holdfast.errors import StorageError

    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{file} cannot be written: {error.strerror}.", fix="--output FILE, in a folder of yours") from None
