"""`holdfast repro`: run the first steps of a training twice and name the first thing that differs, and why."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import AsJson
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.environment.repro.compare import Difference
    from holdfast.environment.repro.pair import RepeatedTraining
    from holdfast.environment.repro.reasons import ReproResult

_STAGES = {
    "weights": "initial weight",
    "batch": "batch",
    "output": "output of module",
    "loss": "loss",
    "gradient": "gradient of",
    "updated": "weight after the update",
    "steps": "number of steps",
}


def register(app: typer.Typer) -> None:
    """Add the verb. Options end at the first word of the command: what follows is the command's own."""
    app.command("repro", context_settings={"allow_interspersed_args": False})(repro)


def repro(
    command: Annotated[list[str] | None, typer.Argument(metavar="COMMAND...", show_default=False)] = None,
    steps: Annotated[int, typer.Option(min=1, help="Number of steps to compare.")] = 10,
    timeout: Annotated[float, typer.Option(min=1, help="Time limit of one run in seconds.")] = 300.0,
    cost: Annotated[bool, typer.Option("--cost", help="Also measure the cost of deterministic kernels.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the first steps of a training twice; name the first step, module and tensor that differ, and why.

    Batches, module outputs, losses, gradients and weights are compared bit by bit. If the runs differ, more pairs are run with
    one source of randomness fixed in each. Exit code 1: they differ.
    """
    from holdfast.environment.interpreter import with_own_python
    from holdfast.environment.repro.pair import RepeatedTraining, run_pair
    from holdfast.environment.repro.reasons import find_reasons

    if not command:
        raise UsageError("which training?", fix="holdfast repro -- python train.py")
    request = RepeatedTraining(command=with_own_python(command), steps=steps, seconds=timeout)
    _tell(f"running the first {steps} steps twice")
    result = find_reasons(request, run_pair(request), _tell)
    measured = _cost(request) if cost else None
    if as_json:
        print(json.dumps(_row(result, measured)))
    else:
        _show(result, measured)
    if result.pair.difference is not None:
        raise typer.Exit(1)


def _tell(text: str) -> None:
    print(f"holdfast: {text}", file=sys.stderr)


def _cost(request: RepeatedTraining) -> float:
    """How much longer a step takes with deterministic kernels; alternating, so that both see the same machine."""
    from statistics import median

    from holdfast.environment.repro.pair import run_once

    _tell("measuring what deterministic kernels cost")
    times: dict[tuple[str, ...], list[float]] = {(): [], ("determinism",): []}
    for steady in (*times, *times):
        rows = run_once(request, steady, digests=False)
        times[steady] += [float(row["seconds"]) for row in rows[1:]] or [float(rows[0]["seconds"])]
    return median(times["determinism",]) / median(times[()])


def _row(result: ReproResult, cost: float | None) -> dict[str, object]:
    difference = result.pair.difference
    reasons = [{"code": reason.code, "because": reason.because, "fix": reason.fix} for reason in result.reasons]
    return {
        "same": difference is None,
        "steps": result.pair.steps,
        "difference": difference.as_row() if difference is not None else None,
        "reasons": reasons,
        "remaining": result.left.as_row() if result.left is not None else None,
        "cost": cost,
    }


def _show(result: ReproResult, cost: float | None) -> None:
    difference = result.pair.difference
    if difference is None:
        print(f"the same, bit for bit: {result.pair.steps} steps, run twice")
    else:
        print(f"different {_where(difference)}")
        for reason in result.reasons:
            print(f"  because of {reason.because}\n    fix: {reason.fix}")
        if result.left is not None:
            also = "still different with these fixed" if result.reasons else "no reason found: different with everything fixed"
            print(f"  {also}, {_where(result.left)}")
    if cost is not None:
        print(f"deterministic kernels: a step takes {cost:.2f} times as long")


def _where(difference: Difference) -> str:
    stage = _STAGES[difference.stage]
    name = "" if difference.stage in ("loss", "steps") else f" {difference.name}".rstrip()
    order = {True: ", the same samples in a different order", False: ", other samples or other values", None: ""}
    drawn = f"; the random state of {' and '.join(difference.generators)} differed" if difference.generators else ""
    return f"at step {difference.step:,}: {stage}{name}{order[difference.same_samples]}{drawn}"
