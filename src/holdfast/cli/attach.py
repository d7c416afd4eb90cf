"""`holdfast attach`: get into a Python process that was started without Holdfast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import AsJson, all_of
from holdfast.errors import CannotAttach, NoSuchRun, UsageError

if TYPE_CHECKING:
    from holdfast.signals.run_folder import RunFolder

_STATE_WORDS = {
    "armed": "recording starts at its next step",
    "waits": "it has not imported torch yet; recording starts at its first step",
}


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("attach")(attach)


def attach(
    processes: Annotated[
        list[str] | None, typer.Argument(metavar="PID", help="The training process; with several ranks, all of them.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option("-t", "--target", metavar="PID", help="Same as PID.", show_default=False)
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run. (default: attached-PID)", show_default=False)] = None,
    folder: Annotated[Path, typer.Option(help="Folder for runs.")] = Path("runs"),
    policy: Annotated[str, typer.Option(help="What Holdfast may do: observe, guard or heal.")] = "observe",
    as_json: AsJson = False,
) -> None:
    """Attach to a Python process that was started without Holdfast; recording starts at its next step.

    Then tail, query, backtrace, eval, set and journal work as with `holdfast run`. You need permission to trace the process
    (same user, or root). If it fails, the process continues unchanged.
    """
    from holdfast.cli.run import read_policy
    from holdfast.probe.attach.checks import check
    from holdfast.probe.attach.enter import enter

    policy, pids = read_policy(policy), [_number(word) for word in all_of(processes, target)]
    if not pids:
        raise UsageError("which process?", fix="holdfast attach $(pgrep -n -f train.py)")
    checked = [check(pid) for pid in pids]
    for process in checked:
        _refuse_recorded(process.pid)
    run = _make_folder(folder, name or f"attached-{pids[0]}", checked[0], policy)
    answers = []
    for process in checked:
        try:
            answer = enter(process, run.path, policy=policy, budget=0.01)
        except CannotAttach:
            _remove(run)
            raise
        if answer["state"] not in _STATE_WORDS:
            _remove(run)
            raise _cannot(process.pid, answer)
        answers.append({"pid": process.pid, "run": run.name, "folder": str(run.path), **answer})
    _start_outside(run, pids[0])
    _tell(answers, as_json=as_json)


def _number(word: str) -> int:
    """A process by its number. One on another machine is entered there."""
    if not word.isascii() or not word.isdigit():
        raise UsageError(
            f"{word!r} is not a PID of this machine.",
            fix="holdfast attach $(pgrep -n -f train.py); for a process on another machine, run it there",
        )
    return int(word)


def _refuse_recorded(pid: int) -> None:
    from holdfast.probe.state import read_state
    from holdfast.probe.target import resolve

    try:
        run = resolve(str(pid))
    except NoSuchRun:
        return
    if not read_state(run).alive:  # the number was another process's once
        return
    raise CannotAttach(f"process {pid} is recorded already, in {run.path}.", fix=f"holdfast tail -t {run.target}")


def _make_folder(parent: Path, name: str, process: Any, policy: str) -> RunFolder:
    import os
    import time

    from holdfast.signals.run_folder import RunFolder

    environment = _environment(process)
    size = environment.get("WORLD_SIZE", "1")
    run = RunFolder.create(
        parent,
        name,
        command=process.cmdline(),
        cwd=process.cwd(),
        started=time.time(),
        pid=process.pid,
        policy=policy,
        rules={},
        python=process.exe(),
        world_size=int(size) if size.isdigit() else 1,
        attached=True,
    )
    uid = process.uids().real
    for path in (run.path, run.path / "run.json") if uid != os.geteuid() else ():
        os.chown(path, uid, -1)  # the process itself writes there
    return run


def _environment(process: Any) -> dict[str, str]:
    import psutil

    try:
        variables: dict[str, str] = process.environ()
    except (psutil.Error, OSError):
        return {}
    return variables


def _remove(run: RunFolder) -> None:
    """Leave no empty run behind; one in which another rank is recorded already stays."""
    import shutil

    if not run.recordings():
        shutil.rmtree(run.path, ignore_errors=True)


def _cannot(pid: int, answer: dict[str, Any]) -> CannotAttach:
    if answer["state"] == "already":
        return CannotAttach(f"Holdfast is in process {pid} already.", fix="holdfast ps lists the runs")
    return CannotAttach(f"Holdfast cannot work in process {pid}: {answer.get('error')}.", fix="the process continues unchanged")


def _start_outside(run: RunFolder, pid: int) -> None:
    """The same side process that `holdfast.watch` starts; it outlives this command."""
    command = [sys.executable, "-m", "holdfast.supervisor.side", str(run.path), str(pid)]
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere, start_new_session=True)
    process.returncode = 0


def _tell(answers: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(answers))
        return
    for answer in answers:
        print(f"in process {answer['pid']}: {_STATE_WORDS[answer['state']]}", file=sys.stderr)
    print(answers[0]["folder"])
