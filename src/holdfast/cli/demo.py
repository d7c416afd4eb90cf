"""`holdfast demo`: a small real training, watched from outside while it runs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.errors import HoldfastError, UsageError

if TYPE_CHECKING:
    from holdfast.signals.run_folder import RunFolder

_SQL = """SELECT module, stage, COUNT(*) AS count, round(1e6 * AVG(duration)) AS avg_us
FROM python.torch_trace GROUP BY module, stage ORDER BY avg_us DESC LIMIT 6"""
_NEXT = (
    ("holdfast tail -t {name}", "that screen, once more"),
    ('holdfast query -t {name} "SELECT * FROM evaluations"', "what it scored, epoch by epoch"),
    ("holdfast tables -t {name}", "everything that can be asked"),
    ("holdfast run -- python train.py", "the same for a script of yours"),
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo")(demo)


def demo(
    folder: Annotated[Path, typer.Option(help="Folder that holds the runs.")] = Path("runs"),
    epochs: Annotated[int, typer.Option(min=1, help="How long to train.")] = 30,
) -> None:
    """Train a small model for under a minute, watch it live, and ask it something with SQL.

    The training script knows nothing of Holdfast: it is started with `holdfast run` like any other.
    """
    if not _installed("sklearn"):
        raise UsageError("the demo's data comes with scikit-learn, which is not installed.", fix="pip install 'holdfast[demo]'")
    script = Path(__file__).parent.parent / "demo" / "digits.py"
    print("A small network learns handwritten digits; the script knows nothing of Holdfast.\n", file=sys.stderr)
    words = [sys.executable, "-m", "holdfast", "run", "--name", "demo", "--folder", str(folder)]
    training = subprocess.Popen(
        [*words, "--", sys.executable, str(script), str(epochs)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    run = _opened(training)
    print(f"$ holdfast run -- python {script.name}\n$ holdfast tail -t {run.name}", file=sys.stderr)
    _watch(run, training)
    if training.wait() != 0:
        raise HoldfastError(f"the demo's training ended with code {training.returncode}.", fix=f"see {run.path}/train.log")
    _ask(run)
    print("\nWhat to try next:", file=sys.stderr)
    for command, what in _NEXT:
        print(f"  {command.format(name=run.name):55s} {what}", file=sys.stderr)


def _opened(training: subprocess.Popen[str]) -> RunFolder:
    """The run folder, from the one line that `holdfast run` prints."""
    from holdfast.signals.run_folder import RunFolder

    assert training.stderr is not None
    line = training.stderr.readline()
    folder = line.partition(" in ")[2].split(" (")[0].strip()
    if not folder:
        raise HoldfastError(f"the training did not start: {line.strip()}", fix="try `holdfast run -- python -c 'import torch'`")
    return RunFolder.open(Path(folder))


def _watch(run: RunFolder, training: subprocess.Popen[str]) -> None:
    """Show the run until it ends, starting when there is something to see."""
    from holdfast.cli.tail import tail

    while not run.recordings() and training.poll() is None:
        time.sleep(0.1)
    tail(str(run.path))


def _ask(run: RunFolder) -> None:
    from holdfast.cli.query import show_answer
    from holdfast.probe.sql import query

    print('\nWhere did the time go?\n$ holdfast query "' + _SQL + '"\n', file=sys.stderr)
    show_answer(query(run, _SQL))


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # something has marked it as missing
        return False
