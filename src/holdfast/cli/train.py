"""`holdfast train`: train with every safety on; the data and the machine are checked first."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from holdfast.errors import StorageError, UsageError

if TYPE_CHECKING:
    from holdfast.train.arguments import Arguments

_SHOWN = 8  # critical problems of the data that are listed


def register(app: typer.Typer) -> None:
    """Add the verb. Its options are the settings of the task, read by the trainer itself."""
    context = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
    app.command("train", add_help_option=False, context_settings=context)(train)


def train(context: typer.Context) -> None:
    """Train a model with one command: detect --data data.yaml, segment --data FOLDER, or sensors --config sensors.yaml."""
    from holdfast.cli import train_cloud
    from holdfast.train.arguments import parse

    if (cloud := train_cloud.split(context.args)) is not None:
        options, train_arguments = cloud
        arguments = parse(train_arguments)
        train_cloud.launch(options, train_arguments, name=arguments.settings.name or arguments.task)
    arguments = parse(context.args)
    name = arguments.settings.name
    if name and (Path(arguments.settings.project) / name / "run.json").exists():
        folder = Path(arguments.settings.project) / name
        raise UsageError(f"there is already a run {name} in {folder}.", fix=f"holdfast resume {folder}, or --name {name}-2")
    raise typer.Exit(start(arguments))


def start(arguments: Arguments) -> int:
    """Check what can be checked, then train under the supervisor; the exit code."""
    from holdfast.supervisor.command import find_command
    from holdfast.supervisor.launch import Settings
    from holdfast.supervisor.watching import run_command
    from holdfast.train.detect import ultralytics
    from holdfast.train.device_names import ranks
    from holdfast.train.tasks import TASKS

    settings = arguments.settings
    TASKS[arguments.task].check(settings)
    count = 1 if ultralytics.trains(settings) else ranks(settings.device)  # Ultralytics starts the others itself
    is_watched = bool(os.environ.get("HOLDFAST_RUN"))  # by `holdfast run` or `holdfast drill`: it trains in that run
    if not is_watched:
        _make_folder(Path(settings.project))
    _check_machine(settings.project, settings.workers)
    if arguments.validate and settings.VALIDATED:
        _check_data(settings.data)
    argv = _command(arguments, count)
    if is_watched:
        os.execv(argv[0], argv)
    command = find_command(argv)
    watched = Settings(
        name=settings.name or None,
        folder=Path(settings.project),
        policy=settings.policy,
        to=arguments.to,
        notify=arguments.notify,
    )
    return run_command(command, watched)


def _make_folder(project: Path) -> None:
    """The folder that holds the runs; where nothing can be written there, an error."""
    try:
        project.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=project).close()
    except OSError as error:
        reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror or error
        problem = f"runs cannot be written to the folder {project}: {reason}."
        raise StorageError(problem, fix="--project with a folder that you may write to, such as --project ~/runs") from None


def _command(arguments: Arguments, ranks: int) -> list[str]:
    """The training process, or torchrun with one per device."""
    from holdfast.train.arguments import argv_of

    if ranks == 1:
        return [sys.executable, "-m", "holdfast.train", *argv_of(arguments)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // ranks)))  # torchrun would take 1, and print a warning
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [sys.executable, *torchrun, "-m", "holdfast.train", *argv_of(arguments)]


def _check_machine(project: str, workers: int) -> None:
    """Say what is wrong with this machine; nothing of it stops the training."""
    from holdfast.environment.check import PROBLEM
    from holdfast.environment.checks import CHECKS
    from holdfast.environment.examine import examine
    from holdfast.environment.machine import Machine, Plans

    machine = Machine(Plans(folder=Path(project), workers=workers, batch=None))
    for answer in examine(machine, [check for check in CHECKS if not (check.long or check.heavy or check.waits)]):
        if answer.verdict.level == PROBLEM:
            _say(f"{answer.check.name}: {answer.verdict.message} (holdfast doctor)")


def _check_data(path: str) -> None:
    """Validate the data; a critical problem is an error with the list."""
    from holdfast.cli.data_progress import Bar
    from holdfast.data.formats.detect import Settings
    from holdfast.data.validate import validate

    with Bar() as bar:
        report = validate(path, Settings(), bar.advance)
    critical = [problem for problem in report.problems if problem.severity == "critical"]
    warnings, command = report.count("warning"), f"holdfast validate {shlex.quote(path)}"
    if critical:
        lines = "\n".join(f"    {problem.words} ({problem.example})" for problem in critical[:_SHOWN])
        raise UsageError(
            f"the data has {_counted(len(critical), 'critical problem')}:\n{lines}",
            fix=f"--no-validate trains anyway; to see every case: {command}",
        )
    if warnings:
        _say(f"data: {_counted(warnings, 'warning')} ({command})")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _say(text: str) -> None:
    print(f"holdfast: {text}", file=sys.stderr, flush=True)
