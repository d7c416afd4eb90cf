"""`holdfast checkpoints choose`: which checkpoint to resume from, with which settings, and why."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import AsJson, Target
from holdfast.errors import NoCheckpoint, UsageError

if TYPE_CHECKING:
    from holdfast.recovery.choosing.candidates import Candidate
    from holdfast.recovery.choosing.history import History, Unit
    from holdfast.recovery.choosing.options import Choice
    from holdfast.signals.run_folder import RunFolder


def register(group: typer.Typer) -> None:
    """Add the verb."""
    group.command("choose")(choose)


def choose(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="FOLDER|RUN",
            help="A folder of checkpoints, or a run (name or folder). (default: the newest run)",
            show_default=False,
        ),
    ] = None,
    target: Target = None,
    as_json: AsJson = False,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="Metric that decides which one is best.", show_default=False)
    ] = None,
    lower_is_better: Annotated[
        bool | None,
        typer.Option("--lower-is-better/--higher-is-better", help="Direction of that metric.", show_default=False),
    ] = None,
) -> None:
    """Recommend one checkpoint to resume from, with the reason, the settings and the command.

    Every byte is verified first. A healthy run resumes from its newest clean checkpoint. After a failure: the best clean
    checkpoint with a lower learning rate, one from before a setting changed, or a fresh start. The history comes from the run's
    tables and journal, or from a log beside it.

    Exit code 0: a clean checkpoint was found; 1: none is clean; 2: there is none.
    """
    from holdfast.cli.checkpoints.choice import show
    from holdfast.cli.show import for_json

    if folder is not None and target is not None:
        raise UsageError("The run is named twice, once with -t.", fix=f"name it once: holdfast checkpoints choose {folder}")
    choice, run = decide(Path(target) if target is not None else folder, metric, lower_is_better)
    if as_json:
        print(json.dumps(for_json(choice.as_row()), ensure_ascii=False))
    else:
        show(choice, run)
    raise typer.Exit(0 if choice.clean else 1)


def decide(folder: Path | None, metric: str | None, lower_is_better: bool | None) -> tuple[Choice, RunFolder | None]:
    """Find the checkpoints and the history that go with a folder, verify them, and choose."""
    from holdfast.cli.checkpoints.paths import as_typed
    from holdfast.cli.checkpoints.progress import Bar
    from holdfast.cli.checkpoints.run_history import history_of_run, run_that_wrote, written_by
    from holdfast.recovery.choosing.candidates import complete, gather
    from holdfast.recovery.choosing.choose import choose as weigh
    from holdfast.recovery.choosing.choose import new_folder
    from holdfast.recovery.choosing.logs_beside import read_history
    from holdfast.signals.metric_direction import better

    top, run = _meant(folder)
    paths = _checkpoints(top, run)
    named, run = run, run if run is not None else run_that_wrote(paths)
    seen = written_by(run) if run is not None else {}
    home = _one_run(paths, top, {path.parent for path in seen}) if named is None else top
    home = _home_of(run, paths, top) if run is not None else home
    with Bar(paths) as bar:
        candidates = gather(bar.verified(), {path: place.step for path, place in seen.items() if place.exact})
    if not candidates:
        raise NoCheckpoint(f"The checkpoints in {top} disappeared while they were read.", fix="run it again")
    about = {path: place.step for path, place in seen.items()}
    candidates = [
        candidate if candidate.step is not None else replace(candidate, noted_step=about.get(candidate.path.resolve()))
        for candidate in candidates
    ]
    read = history_of_run(run) if run is not None else read_history(home, paths, newest=_newest(candidates))
    history = _with_metric(complete(read, candidates, better), metric, lower_is_better)
    beside = None if run is not None and str(home.resolve()) == run.info().get("cwd") else as_typed(new_folder(home))
    return weigh(candidates, history, folder=beside, better=better), run


def _newest(candidates: list[Candidate]) -> dict[Unit, int]:
    """The highest step and epoch of a checkpoint, as far as they tell them."""
    positions: dict[Unit, list[int]] = {
        "step": [candidate.step for candidate in candidates if candidate.step is not None],
        "epoch": [candidate.epoch for candidate in candidates if candidate.epoch is not None],
    }
    return {unit: max(counts) for unit, counts in positions.items() if counts}


def _meant(folder: Path | None) -> tuple[Path, RunFolder | None]:
    """The folder, and the run that it is of, if it is one of Holdfast's: its own folder, or its `checkpoints`."""
    from holdfast.cli.checkpoints.paths import run_named
    from holdfast.probe.target import resolve

    if folder is None:
        run = resolve(None)
        return run.path, run
    path = folder.expanduser()
    if path.is_file():
        path = path.parent
    named = run_named(str(path.resolve().parent if path.name == "checkpoints" and path.is_dir() else path))
    return (path if path.exists() or named is None else named.path), named


def _checkpoints(top: Path, run: RunFolder | None) -> list[Path]:
    """All checkpoints that belong to it. Raises NoCheckpoint, with what lies nearby, if there is none."""
    from holdfast.checkpoints.formats.find import find_checkpoints
    from holdfast.checkpoints.formats.open import open_checkpoint
    from holdfast.cli.checkpoints.paths import as_typed, chosen, refuse_server
    from holdfast.cli.checkpoints.run_history import checkpoints_of

    if run is None:
        if not top.exists():
            refuse_server(str(top))
            open_checkpoint(top)  # raises, with what lies nearby
        checkpoints = find_checkpoints(top)
        runs = sorted(place.parent for place in top.glob("*/run.json") if not place.parent.is_symlink())
        if runs and not checkpoints:
            raise _several(top, runs)
        return checkpoints or chosen([str(top)])
    checkpoints = checkpoints_of(run)
    if not checkpoints:
        raise NoCheckpoint(
            f"The run {run.name} has no checkpoints, and none of its saves was seen.",
            fix="name the folder that its script saves to: holdfast checkpoints choose FOLDER",
        )
    return [as_typed(path) for path in checkpoints]


def _one_run(paths: list[Path], top: Path, written_to: set[Path]) -> Path:
    """The folder of the run that they are all of. Raises UsageError if they are of several.

    `written_to` are the folders that one run of Holdfast's was seen to write to: these are one.
    """
    from holdfast.recovery.choosing.logs_beside import run_folder_of

    homes: dict[str, Path] = {}
    for path in paths:
        own = path.resolve().parent in written_to
        homes.setdefault("" if own else str(run_folder_of(path, top)), path.parent if own else run_folder_of(path, top))
    if len(homes) > 1:
        raise _several(top, list(homes.values()))
    return next(iter(homes.values()))


def _several(top: Path, runs: list[Path]) -> UsageError:
    from holdfast.cli.checkpoints.paths import as_typed

    named = "".join(f"\n       holdfast checkpoints choose {as_typed(run)}" for run in runs[-8:])
    count = f"{len(runs)} runs" if len(runs) > 1 else "a run"
    return UsageError(f"{top} is not the folder of one run: it holds {count}.", fix=f"name the run:{named}")


def _home_of(run: RunFolder, paths: list[Path], top: Path) -> Path:
    """The folder beside which a recovery goes: the run's; where its script saves elsewhere, the one that it saves to."""
    outside = [path for path in paths if not path.resolve().is_relative_to(run.path)]
    if not outside:
        return run.path
    return outside[-1].parent if top.resolve().is_relative_to(run.path) else top


def _with_metric(history: History, metric: str | None, lower_is_better: bool | None) -> History:
    """The metric that was asked for. One whose direction is unknown is named on stderr."""
    names = [series.name for series in history.metrics if series.points]
    if metric is not None and history.metric(metric) is None:
        there = f"there are: {', '.join(names)}" if names else "no log and no checkpoint has any"
        raise UsageError(f"there is no metric {metric!r}.", fix=there)
    wanted = metric or history.monitored or (names[0] if len(names) == 1 else None)
    history = history.with_metric(wanted if metric or lower_is_better is not None else None, lower_is_better)
    chosen = history.metric(wanted) if wanted else None
    if chosen is not None and chosen.lower_is_better is None:
        fix = "add --higher-is-better or --lower-is-better"
        print(f"{chosen.name} was not used: unknown whether higher or lower is better; {fix}", file=sys.stderr)
    return history
