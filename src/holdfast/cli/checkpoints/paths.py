"""Which checkpoints a command line means: files, folders with all that is in them, patterns, runs; or none, what is here."""

from __future__ import annotations

import glob
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.errors import HoldfastError, NoCheckpoint

if TYPE_CHECKING:
    from holdfast.checkpoints.contents import Contents
    from holdfast.signals.run_folder import RunFolder

Paths = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PATH|RUN…",
        help="Files, folders, patterns or run names. (default: the newest run and the usual folders here)",
        show_default=False,
    ),
]


def chosen(arguments: list[str] | None) -> list[Path]:
    """The checkpoints that are meant, each once. Raises NoCheckpoint if there is none; a wrong path among several is reported."""
    paths: list[Path] = []
    for text in arguments or ():
        try:
            paths += _named(text)
        except NoCheckpoint as error:
            if len(arguments or ()) == 1:
                raise
            print(f"error: {error.problem}\n  fix: {error.fix}", file=sys.stderr)
    if not arguments:
        paths += _here()
    if not paths:
        raise NoCheckpoint(
            "No checkpoint was found at any of these paths."
            if arguments
            else "No checkpoint was found in the usual folders here.",
            fix="name a file or a folder: holdfast checkpoints list path/to/folder",
        )
    return list(_once(paths))


def refuse_server(text: str) -> None:
    """Checkpoints are files: a server does not hand them out."""
    from holdfast.probe.address import is_server, parse

    if is_server(text) and (server := parse(text)) is not None:
        problem = f"{text} is a server, and checkpoints are files: this verb works on the machine that has them."
        raise NoCheckpoint(problem, fix=f"run it there: ssh {server.host} holdfast checkpoints …")


def run_named(text: str) -> RunFolder | None:
    """The run that a word means, as every verb takes it: its folder, its name or its process; a path that is no run is none."""
    from holdfast.probe.target import resolve

    path = Path(text).expanduser()
    if path.exists() and not (path / "run.json").is_file():
        return None
    try:
        return resolve(text)
    except HoldfastError:
        return None


def opened(paths: list[Path]) -> Iterator[Contents]:
    """Each checkpoint, with the facts of its indexes; one that vanished meanwhile is reported and skipped."""
    from holdfast.checkpoints.formats.open import open_checkpoint

    for path in paths:
        try:
            yield open_checkpoint(path)
        except NoCheckpoint as error:
            print(f"error: {error.problem}", file=sys.stderr)


def _named(text: str) -> list[Path]:
    refuse_server(text)
    path = Path(text).expanduser()
    if not path.exists() and not path.is_symlink() and glob.has_magic(text):
        hits = [Path(hit) for hit in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207 - Path.glob wants its folder apart
        inside = [path for hit in hits for path in _with_all_inside(hit, alone=False)]
        if not inside:
            raise NoCheckpoint(f"No checkpoint matches {text}.", fix="name a folder: all checkpoints in it are read")
        return inside
    from holdfast.cli.checkpoints.run_history import checkpoints_of

    run = run_named(text)
    checkpoints = [as_typed(path) for path in checkpoints_of(run)] if run is not None else []
    return checkpoints or _with_all_inside(path if run is None else run.path, alone=True)


def _with_all_inside(path: Path, *, alone: bool) -> list[Path]:
    """The path, or of a folder everything in it. A folder with nothing in it is looked at as it is, if it was named `alone`."""
    from holdfast.checkpoints.formats.find import search
    from holdfast.checkpoints.formats.open import open_checkpoint

    if not path.is_dir():
        if alone and not path.exists():
            open_checkpoint(path)  # raises, and names what is near
        return [path]
    checkpoints = search(path)
    if not checkpoints.complete:
        print(f"{path} holds too many files to search: name a subfolder", file=sys.stderr)
    if checkpoints.paths or not alone:
        return checkpoints.paths
    _refuse_empty(path)
    return [path]


def _refuse_empty(path: Path) -> None:
    """A folder without any checkpoint is an error of the command line, unless it is what an interrupted save left."""
    from holdfast.checkpoints.formats.open import open_checkpoint

    contents = open_checkpoint(path)
    if contents.state == "unreadable" and contents.troubles and not contents.files:
        trouble = contents.troubles[0]
        raise NoCheckpoint(f"{path}: {trouble.text[:1].lower()}{trouble.text[1:]}", fix=trouble.fix)


def _here() -> Iterator[Path]:
    """What lies in the newest run, in the usual folders, and beside the user."""
    from holdfast.checkpoints.formats.find import USUAL, search
    from holdfast.checkpoints.formats.kinds import SUFFIXES

    yield from _of_the_newest_run()
    for folder in map(Path, USUAL):
        if folder.is_dir():
            yield from search(folder).paths
    yield from sorted(path for path in Path().iterdir() if path.name.lower().endswith(SUFFIXES) and path.is_file())


def _of_the_newest_run() -> Iterator[Path]:
    from holdfast.cli.checkpoints.run_history import checkpoints_of
    from holdfast.probe.target import resolve

    try:
        yield from map(as_typed, checkpoints_of(resolve(None)))
    except HoldfastError:
        return


def as_typed(path: Path) -> Path:
    """The path as one would type it here."""
    here = Path.cwd()
    resolved = path.resolve()
    return resolved.relative_to(here) if resolved.is_relative_to(here) else path


def _once(paths: Iterable[Path]) -> Iterator[Path]:
    seen: set[Path] = set()
    for path in paths:
        real = path.resolve()
        if real not in seen:
            seen.add(real)
            yield path
