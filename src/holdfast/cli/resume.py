"""`holdfast resume`: continue a training of `holdfast train` where it stopped, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import run_names
from holdfast.errors import NoSuchRun, UsageError

if TYPE_CHECKING:
    from holdfast.train.arguments import Arguments

_CANDIDATES = 3
_SETTINGS = "settings.yaml"


def register(app: typer.Typer) -> None:
    """Add the verb. Further options are settings to change, as `holdfast train` takes them."""
    app.command("resume", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(resume)


def resume(
    context: typer.Context,
    run: Annotated[
        str | None,
        typer.Argument(help="Name or folder of the run; default: the newest.", show_default=False, autocompletion=run_names),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="This checkpoint instead of the run's newest clean one.", show_default=False)
    ] = None,
    folder: Annotated[Path, typer.Option(help="Folder that holds the runs.")] = Path("runs"),
) -> None:
    """Continue a training of `holdfast train`: holdfast resume my-run, or holdfast resume my-run --epochs 200.

    It continues in a new folder; the old run stays as it is. Weights, optimizer, schedule, random numbers and the position in the
    data are restored, in the middle of an epoch too, also on another number of devices.
    """
    from holdfast.cli.train import start
    from holdfast.train.arguments import parse_resume

    name, changes = parse_resume([run, *context.args] if run is not None else context.args)
    source = _existing(checkpoint, folder) if checkpoint is not None else run_folder(name, folder)
    raise typer.Exit(start(_arguments(source, changes)))


def run_folder(name: str | None, parent: Path) -> Path:
    """The folder of a run of the trainer."""
    runs = sorted((path.parent for path in parent.glob(f"*/{_SETTINGS}") if not path.parent.is_symlink()), key=_changed)
    names = ", ".join(path.name for path in reversed(runs[-_CANDIDATES:]))
    if name is None:
        if not runs:
            raise NoSuchRun(f"{parent} holds no run of `holdfast train`.", fix="holdfast train detect --data data.yaml")
        return next((path for path in reversed(runs) if _has_state(path)), runs[-1])
    there = [path for path in (parent / name, Path(name)) if path.is_dir()]
    if not there:
        raise NoSuchRun(f"there is no run {name}.", fix=f"holdfast resume with one of: {names}" if names else "holdfast ps")
    folder = next((path for path in there if (path / _SETTINGS).exists()), None)
    if folder is None:
        fix = f"holdfast checkpoints choose {name} shows how to resume it"
        raise UsageError(f"{name} is not a run of `holdfast train`.", fix=fix)
    return folder


def _has_state(run: Path) -> bool:
    """Whether a run has something to resume from; one that failed at its start has not."""
    return any(run.glob("checkpoints/step-*")) or any(run.glob("ultralytics/weights/*.pt"))


def _existing(checkpoint: Path, parent: Path) -> Path:
    """A checkpoint that `holdfast train` can resume from; anything else is an error that names what can."""
    if checkpoint.is_file() and checkpoint.parent.joinpath("manifest.json").exists():
        checkpoint = checkpoint.parent
    if (checkpoint / "manifest.json").exists() or (checkpoint / _SETTINGS).exists():
        return checkpoint
    if checkpoint.exists():
        problem = f"{checkpoint} has no optimizer state, schedule or position in the data."
        raise UsageError(problem, fix=f"train from its weights: holdfast train detect --weights {checkpoint} --data data.yaml")
    kept = (path for path in parent.glob("*/checkpoints/step-*") if not path.parents[1].is_symlink())
    near = sorted(kept, key=_changed)[-_CANDIDATES:]
    fix = " or ".join(f"--checkpoint {path}" for path in reversed(near)) or "holdfast checkpoints list ."
    raise UsageError(f"{checkpoint} does not exist.", fix=fix)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _epochs_of(run: Path) -> int:
    """The last epoch in a run's table."""
    rows = (run / "metrics.csv").read_text(encoding="utf-8").splitlines()[1:]
    return int(rows[-1].partition(",")[0]) if rows else 0


def _arguments(source: Path, changes: dict[str, Any]) -> Arguments:
    """The settings of the run or checkpoint, with the changes of the command line."""
    from holdfast.train.arguments import Arguments
    from holdfast.train.settings import read_settings
    from holdfast.train.tasks import settings_of

    kind, kept = settings_of(source)
    before = read_settings(kind.settings, None, kept)
    settings = read_settings(kind.settings, None, before.as_dict() | changes)
    for name in kind.settings.MODEL:
        was, now = getattr(before, name), getattr(settings, name)
        if was != now:
            options = f"--{name.replace('_', '-')} {now} --data {settings.data}"
            what = "" if isinstance(was, str) else f"{name.replace('_', ' ')} "
            problem = f"{source} was trained with {what}{was}; its state does not fit {now}."
            raise UsageError(problem, fix=f"start a new run: holdfast train {kind.name} {options}")
    if (source / "report.html").exists() and _epochs_of(source) >= settings.epochs:
        problem = f"{source} has trained all of its {settings.epochs} epochs."
        raise UsageError(problem, fix=f"holdfast resume {source} --epochs {2 * settings.epochs}")
    return Arguments(task=kind.name, settings=settings, validate=False, resume=source.absolute())
