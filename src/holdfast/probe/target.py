"""Which run `-t TARGET` means: a process id, a run folder, a run name, or nothing (the newest run here)."""

from __future__ import annotations

import difflib
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil

from holdfast.errors import HoldfastError, NoSuchRun, NotARunFolder, UsageError
from holdfast.probe.address import parse as parse_address
from holdfast.signals.registry import live_runs
from holdfast.signals.run_folder import RunFolder

_START_ONE = "start one: holdfast run -- python train.py"


def resolve(target: str | None = None, *, here: Path | None = None, live: bool = False) -> RunFolder:
    """Find the run that a target names; `here` is where `runs/` is looked for, the current folder by default.

    Without a target, `live` takes the newest live run, if there is one, before a newer one that is over.
    """
    here = Path.cwd() if here is None else here
    if not target:
        return _newest(here, live=live)
    path = here / Path(target).expanduser()
    if (path / "run.json").exists():
        return RunFolder.open(path)
    if (path.parent / "run.json").exists() and path.is_dir():
        return RunFolder.open(path.parent)  # the folder of one rank
    if "/" not in target and (here / "runs" / target / "run.json").exists():
        return RunFolder.open(here / "runs" / target)
    if target.isdigit():
        return _of_process(int(target), here)
    if parse_address(target) is not None and not path.exists():
        raise UsageError(
            f"{target} is a server, and this verb needs the run folder itself.",
            fix="run it there over ssh; ps, tail, diagnose, tables, query, journal, backtrace, eval and set accept a server",
        )
    return _named(target, path, here)


def runs_here(here: Path | None = None) -> list[RunFolder]:
    """The runs in `./runs`, newest first; what cannot be opened is skipped."""
    runs = []
    parent = (Path.cwd() if here is None else here) / "runs"
    for entry in parent.glob("*/run.json"):
        if entry.parent.is_symlink():
            continue
        try:
            runs.append((entry.stat().st_mtime, RunFolder.open(entry.parent)))
        except (OSError, HoldfastError):
            continue
    return [run for _, run in sorted(runs, key=lambda dated: -dated[0])]


def registered_runs() -> list[RunFolder]:
    """The live runs of this machine, newest first."""
    runs = []
    for live in live_runs():
        try:
            runs.append(RunFolder.open(live.folder))
        except (OSError, HoldfastError):
            continue
    return sorted(runs, key=_started, reverse=True)


def _started(run: RunFolder) -> float:
    value = run.info().get("started")
    return float(value) if isinstance(value, (int, float)) else 0.0


def _newest(here: Path, *, live: bool) -> RunFolder:
    """What `latest` points to, or the newest run; one that ended before its first step only where no run is alive."""
    latest = here / "runs" / "latest"
    newest = RunFolder.open(latest) if (latest / "run.json").exists() else next(iter(runs_here(here)), None)
    never_began = newest is None or not (newest.recordings() or newest.info().get("ended") is None)
    if newest is not None and not (live or never_began):
        return newest
    alive = registered_runs()
    near = [run for run in alive if run.path.parent == (here / "runs").resolve()]
    chosen = newest if newest in near else next(iter(near or (alive if never_began else ())), newest)
    if chosen is None:
        raise NoSuchRun("there is no run here, and none is alive on this machine.", fix=_START_ONE)
    return chosen


def _named(target: str, path: Path, here: Path) -> RunFolder:
    alive = registered_runs()
    for run in alive:
        if run.name == target:
            return run
    if path.exists():
        raise NotARunFolder(
            f"{target} is not a run folder: it holds no run.json." if path.is_dir() else f"{target} is a file, not a run folder.",
            fix="name a folder such as runs/<name>; `holdfast ps --all` lists the runs here",
        )
    names = list(dict.fromkeys(run.name for run in (*runs_here(here), *alive)))
    raise NoSuchRun(f"there is no run {target!r}{_near(Path(target).name, names)}.", fix=_fix(names))


def _near(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, 3, 0.5)
    return f"; near it: {', '.join(close)}" if close else f"; there are: {', '.join(names[:5])}" if names else ""


def _fix(names: list[str]) -> str:
    return "`holdfast ps --all` lists the runs here" if names else _START_ONE


def _of_process(pid: int, here: Path) -> RunFolder:
    """The run that a process belongs to: it, or one of its ancestors, supervises or trains in it."""
    by_pid = dict(reversed(list(_known_processes(here))))  # the newest run of a number that was used twice
    for ancestor in _line_of(pid):
        if ancestor in by_pid:
            return by_pid[ancestor]
    if not psutil.pid_exists(pid):
        raise NoSuchRun(f"there is no process {pid}, and no run here belongs to it.", fix="`holdfast ps` lists the live runs")
    raise NoSuchRun(
        f"process {pid} ({_command(pid)}) belongs to no run.",
        fix="`holdfast ps` lists the live runs; start one: holdfast run -- python train.py",
    )


def _known_processes(here: Path) -> Iterator[tuple[int, RunFolder]]:
    """Process ids with their run, live runs before others."""
    for live in live_runs():
        yield live.pid, RunFolder(live.folder)
    host = socket.gethostname()
    for run in (*registered_runs(), *runs_here(here)):
        if isinstance(started := run.info().get("pid"), int):
            yield started, run
        for recording in run.recordings():
            info = recording.info()
            if isinstance(info.get("pid"), int) and info.get("host", host) == host:
                yield info["pid"], run


def _line_of(pid: int) -> list[int]:
    """The process and its ancestors, as far as they can be seen."""
    try:
        return [pid, *(parent.pid for parent in psutil.Process(pid).parents())]
    except psutil.Error:
        return [pid]


def _command(pid: int) -> str:
    try:
        line = " ".join(" ".join(psutil.Process(pid).cmdline()).split())
    except psutil.Error:
        return "another user's"
    return line if len(line) <= 50 else line[:49] + "…"
