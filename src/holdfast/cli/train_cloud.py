"""`holdfast train … --cloud sky`: the same training on a machine of a cloud, with a GPU that it fits on."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from typing import NoReturn

import typer

from holdfast.errors import HoldfastError, UsageError

_CARDS = (24, 40, 80, 141)  # GB of the GPUs that clouds offer
_GB = 1e9


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.", fix="holdfast train detect --data data.yaml --cloud sky --volume runs")


def split(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]] | None:
    """The options of the cloud, and the words of the training; None without `--cloud`."""
    if not any(word == "--cloud" or word.startswith("--cloud=") for word in arguments):
        return None
    options, rest = parser().parse_known_args(list(arguments))
    return options, rest


def parser() -> argparse.ArgumentParser:
    """The options of the cloud."""
    made = _Parser(add_help=False, allow_abbrev=False)
    made.add_argument("--cloud", choices=("sky", "dstack"))
    made.add_argument("--volume", required=True)
    made.add_argument("--gpu")
    made.add_argument("--on-demand", action="store_true")
    made.add_argument("--dry-run", action="store_true")
    return made


def launch(options: argparse.Namespace, arguments: list[str], *, name: str) -> None:
    """Write the task and start it, as `holdfast launch cloud` does. A machine that comes later finds the run and resumes it."""
    from holdfast.cli.launch import start_task
    from holdfast.launch.cloud import task
    from holdfast.launch.job import Job

    run = f"/runs/{name}"
    start = shlex.join(["holdfast", "train", *arguments, "--project", "/runs", "--name", name])
    script = f"if [ -f {run}/run.json ]; then\n  holdfast resume {run}\nelse\n  {start}\nfi"
    job = Job(command=("holdfast", "train", *arguments), name=name, gpus=1, folder="/runs")
    gpu = options.gpu or f"{memory_for(arguments)}GB+"
    made = task(options.cloud, job, gpu=gpu, spot=not options.on_demand, volume=options.volume, command=script)
    code = start_task(options.cloud, made, name, dry_run=options.dry_run)
    raise typer.Exit(code)


def memory_for(arguments: Sequence[str]) -> int:
    """GB of the smallest GPU on which the training fits with its own batch size, as `holdfast plan` measures it here."""
    import sys

    from holdfast.environment.plan.measuring import measure_training
    from holdfast.environment.plan.options import usable
    from holdfast.environment.plan.trial import MeasuredTraining, measured_command

    command = [sys.executable, "-m", "holdfast.train", *arguments]
    try:
        facts = measure_training(
            MeasuredTraining(command=measured_command(command), seconds=300.0),
            lambda text: print(f"holdfast: {text}", file=sys.stderr),
        )
    except HoldfastError as error:
        raise UsageError(
            f"how much memory the training needs could not be measured: {error.problem}", fix="name the GPU: --gpu A100"
        ) from None
    need = facts.line.peak(facts.own_batch)
    card = next((card for card in _CARDS if usable(facts, card * _GB) >= need), None)
    if card is None:
        raise UsageError(
            f"a batch of {facts.own_batch} needs {need / _GB:.0f} GB, more than one GPU has.", fix="a smaller --batch"
        )
    print(
        f"holdfast: a batch of {facts.own_batch} needs {need / _GB:.2g} GB: a GPU of {card} GB or more (holdfast plan)",
        file=sys.stderr,
    )
    return card
