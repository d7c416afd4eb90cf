"""`holdfast run` from start to end: start the command, watch it, leave with its exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from holdfast.errors import CommandNotFound, UsageError
from holdfast.signals import registry
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor import drain
from holdfast.supervisor.command import Command
from holdfast.supervisor.facts import facts_later
from holdfast.supervisor.following import Follower, join, planned
from holdfast.supervisor.forwarding import Forwarding
from holdfast.supervisor.launch import Launch, RunInfo, Settings, prepare
from holdfast.supervisor.leading import Leader
from holdfast.supervisor.outside import Outside
from holdfast.supervisor.preemption import Preemption
from holdfast.supervisor.printed_metrics import PrintedMetrics
from holdfast.supervisor.restarts import Restarts
from holdfast.supervisor.streams import Channel, Streams, keep_standard_descriptors
from holdfast.supervisor.train_log import TrainLog, end_of_log

_LOG_SECONDS = 2.0
_FACTS_SECONDS = 0.5
_LOG_LETTERS = 20_000  # of its end, that the first node looks at
_TO_DEFAULT = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them for itself; the command must not


def run_command(command: Command, settings: Settings) -> int:
    """Run the command under watch, and answer with the code to exit with: the command's, or 128 + its signal."""
    keep_standard_descriptors()
    launch = prepare(command, settings)
    if launch.run is None:
        return _run_unwatched(launch)
    if settings.node:
        return _run_node(launch, launch.run)
    return _run_watched(launch, launch.run)


def _run_watched(launch: Launch, run: RunFolder) -> int:
    trouble, info = Trouble(run.journal), RunInfo(run)
    log = TrainLog(run.path / "train.log", trouble)
    printed = PrintedMetrics(run, trouble)

    def copy(part: bytes, channel: int) -> None:
        log.put(part)
        printed.put(part, channel)

    streams = Streams(copy, trouble.step_back)
    window = Window(streams)
    preemption = _preemption(launch, trouble)
    signals = Forwarding(window.resize, preemption=preemption, apart=launch.apart)
    leader = Leader(launch, run, trouble) if launch.settings.nodes > 1 else None
    restarts = Restarts(launch, run, signals, trouble, leader)
    try:
        pid = _start(restarts.first(), streams, signals, leader)
    except UsageError:
        _remove(run)
        raise
    info.note(pid=pid)
    log.start()
    printed.start()
    streams.start()
    signals.to(pid)
    with Outside(run, pid, trouble, hurry=signals.hurry, notify=launch.settings.notify) as outside:
        if leader is not None:
            outside.hang.others = leader.standings
            leader.start()
        later = threading.Thread(target=lambda: info.note(**facts_later(launch.command.arguments)), daemon=True)
        later.start()
        restarts.begins(pid, outside)
        while True:
            code = _wait_for(pid)
            signals.command_ended()
            early = code != 0 or restarts.has_ended_it or signals.requested is not None
            if not (early and restarts.trains):
                info.note(ended=time.time(), exit_code=code)
            held = streams.finish(signals.hurry)
            again = restarts.after(code, log, outside) if early else None
            if again is None:
                break
            _let_go(held)
            window.streams = streams = Streams(copy, trouble.step_back)
            pid = _start(again, streams, signals, leader)
            info.note(pid=pid)
            streams.start()
            signals.to(pid)
            restarts.begins(pid, outside)
        if leader is not None:
            leader.over(code)
        code = preemption.exit_code(code) if preemption else code
        if (refused := info.note(ended=time.time(), exit_code=code)) is not None:
            trouble.step_back("writing run.json", refused)
        later.join(_FACTS_SECONDS)
        printed.finish()
        log.close(_LOG_SECONDS)
        if held:
            _leave_to_drain(held, log.path, signals)
    restarts.say(refused)
    outside.senders.say_left()
    if outside.busy:
        os._exit(code)  # ending the interpreter under a thread that writes Parquet can crash, and the code would be lost
    return code


class Window:
    """Passes the size of our window on to the streams of the attempt that runs now."""

    def __init__(self, streams: Streams | None) -> None:
        self.streams = streams

    def resize(self) -> bool:
        """Follow the window; True if a size has changed."""
        return self.streams is not None and self.streams.resize()


def _run_unwatched(launch: Launch) -> int:
    """Without a folder."""
    signals = Forwarding(lambda: False, apart=launch.apart)
    pid = _start(launch, None, signals)
    signals.to(pid)
    return _wait_for(pid)


def _run_node(launch: Launch, run: RunFolder) -> int:
    """On a node of several whose run is watched and judged on the first one: each attempt that node 0 begins."""
    trouble = Trouble(run.journal)
    log = TrainLog(run.path / f"train-{launch.settings.node}.log", trouble)
    window = Window(None)
    preemption = _preemption(launch, trouble)
    signals = Forwarding(window.resize, preemption=preemption, apart=launch.apart)
    follower, code = Follower(run, launch.settings.node, trouble), 0
    registry.register(run, os.getpid())
    link = join(launch, run, trouble)
    follower.agent.start()
    log.start()
    while (plan := follower.next_plan(lambda: signals.requested is None)) is not None:
        streams = window.streams = Streams(lambda part, _channel: log.put(part), trouble.step_back)
        begin = log.size
        if link is not None:
            link.fetch_checkpoints(plan)
        pid = _start(planned(launch, run, plan), streams, signals)
        streams.start()
        signals.to(pid)
        follower.begins(pid, plan)
        code = _wait_for(pid)
        signals.command_ended()
        _let_go(streams.finish(signals.hurry))
        follower.finish_ending()
        log.flush(_LOG_SECONDS)
        requested = signals.requested.name if signals.requested else None
        follower.agent.ended(code, log=end_of_log(log.path, begin)[-_LOG_LETTERS:] if code else "", requested=requested)
    code = preemption.exit_code(code) if preemption else code
    follower.agent.stop()
    log.close(_LOG_SECONDS)
    if link is not None:
        link.close()
    registry.forget(os.getpid())
    return code


def _preemption(launch: Launch, trouble: Trouble | None) -> Preemption | None:
    if launch.run is None or not launch.settings.resume:
        return None
    return Preemption(launch.run, trouble or Trouble(launch.run.journal), acts=launch.settings.node == 0)


def _start(launch: Launch, streams: Streams | None, signals: Forwarding, leader: Leader | None = None) -> int:
    """Start the command and say so. The line goes out before anything of the command's: nothing is copied yet."""
    environment = launch.environment(streams.identities() if streams else "")
    actions = streams.file_actions() if streams else []
    try:
        pid = _spawn(launch.command, environment, actions, signals, apart=launch.apart)
    except OSError as error:
        raise _cannot_start(launch.command, error) from None
    if leader is not None:
        leader.begins(launch)
    with contextlib.suppress(OSError):
        os.write(2, (launch.line + "\n").encode(errors="replace"))
    return pid


def _spawn(
    command: Command, environment: dict[str, str], actions: list[tuple[object, ...]], signals: Forwarding, *, apart: bool
) -> int:
    """Not `subprocess`: descriptors above 2 that we were started with are the command's, and it closes them.

    `apart`: in a process group of its own. Slurm signals the whole group, and torchrun would end its ranks at once.
    """
    hang_up = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited: a terminal that goes away does not end a training
    try:
        return os.posix_spawn(
            command.path,
            command.arguments,
            environment,
            file_actions=actions,
            setsigmask=signals.child_mask,
            setsigdef=_TO_DEFAULT,
            setpgroup=0 if apart else os.getpgrp(),
        )
    except OSError as error:
        script = command.through_an_interpreter()
        if error.errno != errno.ENOEXEC or script.path == command.path:
            raise
        return _spawn(script, environment, actions, signals, apart=apart)
    finally:
        signal.signal(signal.SIGHUP, hang_up)


def _cannot_start(command: Command, error: OSError) -> UsageError:
    if error.errno == errno.ENOENT:
        return CommandNotFound(
            f"{command.path} cannot be started: the interpreter that its first line names does not exist.",
            fix=f"correct the `#!` line of {command.path}, or run it with: python {command.path}",
        )
    return UsageError(f"{command.path} cannot be started: {error.strerror}.", fix="run it without `holdfast run`")


def _wait_for(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _let_go(held: list[Channel]) -> None:
    """Close the channels that somebody of an attempt which is over still held; he was ended."""
    for channel in held:
        with contextlib.suppress(OSError):
            os.close(channel.ours)


def _leave_to_drain(held: list[Channel], log: Path, signals: Forwarding) -> None:
    """Someone else still prints: hand the channels to a small process that stays until they are closed."""
    for channel in held:
        os.set_inheritable(channel.ours, True)
    command = [sys.executable, "-I", "-S", str(Path(drain.__file__)), str(log)]
    command += [f"{channel.ours}:{channel.target}" for channel in held]
    with contextlib.suppress(OSError):
        os.posix_spawn(sys.executable, command, dict(os.environ), setsigmask=signals.child_mask)


def _remove(run: RunFolder) -> None:
    """Leave nothing behind of a run that never began."""
    shutil.rmtree(run.path, ignore_errors=True)
    with contextlib.suppress(OSError):
        latest = run.path.parent / "latest"
        if latest.is_symlink() and not latest.exists():
            latest.unlink()
        run.path.parent.rmdir()
