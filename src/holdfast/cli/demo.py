"""`holdfast demo`: a small real training that breaks on purpose, healed while you look on."""

from __future__ import annotations

import contextlib
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

_STORY = """A small network learns handwritten digits. The script is unchanged, and breaks
on purpose: one image holds an Inf, and half-way through one bit of one weight flips.
"""
_NEXT = (
    ("holdfast replay {name} --step {step}", "run the bad batch again, see where it broke"),
    ('holdfast query -t {name} "SELECT * FROM evaluations"', "the metric by epoch"),
    ("holdfast tail -t {name}", "the live screen again"),
    ("holdfast run --policy heal -- python train.py", "the same for your own script"),
)


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("demo")(demo)


def demo(
    folder: Annotated[Path, typer.Option(help="Folder for runs.")] = Path("runs"),
    epochs: Annotated[int, typer.Option(min=1, help="Number of epochs.")] = 30,
) -> None:
    """Train a small model with an injected fault, watched and repaired; takes under a minute.

    The script is unchanged: it runs under `holdfast run`, and at the same time without it for comparison.
    """
    if not _installed("sklearn"):
        raise UsageError("the demo's data comes with scikit-learn, which is not installed.", fix="pip install 'holdfast[demo]'")
    script = Path(__file__).parent.parent / "demo" / "digits.py"
    print(_STORY, file=sys.stderr)
    holdfast_run = [sys.executable, "-m", "holdfast", "run", "--name", "demo", "--folder", str(folder), "--policy", "heal"]
    command = [sys.executable, str(script), str(epochs)]
    training = subprocess.Popen([*holdfast_run, "--", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    alone = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    run = _opened(training)
    print(f"$ holdfast run --policy heal -- python {script.name}\n$ holdfast tail -t {run.name}", file=sys.stderr)
    _watch(run, training)
    if training.wait() != 0:
        raise HoldfastError(f"the demo's training ended with code {training.returncode}.", fix=f"see {run.path}/train.log")
    _tell(run)
    _explain(run)
    print("\nThe same script, the same seed, the same faults:", file=sys.stderr)
    print(f"  without Holdfast  {_last_line(alone.communicate()[0])}")
    print(f"  with Holdfast     {_last_line((run.path / 'train.log').read_text(encoding='utf-8'))}")
    print("\nWhat to try next:", file=sys.stderr)
    step = next((entry["step"] for entry in run.journal if entry.get("action") == "skip-batch"), 0)
    for command_text, description in _NEXT:
        print(f"  {command_text.format(name=run.name, step=step):55s} {description}", file=sys.stderr)


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


def _tell(run: RunFolder) -> None:
    from holdfast.cli.journal import journal

    print(f"\nWhat was found, and what was done?\n$ holdfast journal -t {run.name}\n", file=sys.stderr)
    with contextlib.suppress(typer.Exit):  # it has found something wrong, and says so by its code
        journal([str(run.path)])


def _explain(run: RunFolder) -> None:
    from holdfast.cli.diagnose import diagnose

    print(f"\nWhy, and what should be changed?\n$ holdfast diagnose {run.name}\n", file=sys.stderr)
    with contextlib.suppress(typer.Exit):
        diagnose([str(run.path)])


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # something has marked it as missing
        return False
