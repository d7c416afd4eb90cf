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
    return WatchedRun(launch, launch.run).run()


class WatchedRun:
    """A run from its first attempt to its end: output is copied, signals are passed on, what died starts again."""

    def __init__(self, launch: Launch, run: RunFolder) -> None:
        self._launch, self._run = launch, run
        self._trouble, self._info = Trouble(run.journal), RunInfo(run)
        self._log = TrainLog(run.path / "train.log", self._trouble)
        self._printed = PrintedMetrics(run, self._trouble)
        self._streams = self._new_streams()
        self._window = Window(self._streams)
        self._preemption = _preemption(launch, self._trouble)
        self._signals = Forwarding(self._window.resize, preemption=self._preemption, apart=launch.apart)
        self._leader = Leader(launch, run, self._trouble) if launch.settings.nodes > 1 else None
        self._restarts = Restarts(launch, run, self._signals, self._trouble, self._leader)

    def run(self) -> int:
        """Everything; the code to exit with."""
        try:
            pid = self._start(self._restarts.first())
        except UsageError:
            _remove(self._run)
            raise
        self._log.start()
        self._printed.start()
        self._copy_output(pid)
        notify = self._launch.settings.notify
        with Outside(self._run, pid, self._trouble, hurry=self._signals.hurry, notify=notify) as outside:
            if self._leader is not None:
                outside.hang.others = self._leader.standings
                self._leader.start()
            facts = threading.Thread(target=self._note_facts, daemon=True)
            facts.start()
            code, held = self._attempts(pid, outside)
            if self._leader is not None:
                self._leader.over(code)
            code = self._preemption.exit_code(code) if self._preemption else code
            if (refused := self._info.note(ended=time.time(), exit_code=code)) is not None:
                self._trouble.step_back("writing run.json", refused)
            facts.join(_FACTS_SECONDS)
            self._printed.finish()
            self._log.close(_LOG_SECONDS)
            if held:
                _leave_to_drain(held, self._log.path, self._signals)
        self._restarts.say(refused)
        outside.senders.say_left()
        if outside.busy:
            os._exit(code)  # ending the interpreter under a thread that writes Parquet can crash, and the code would be lost
        return code

    def _attempts(self, pid: int, outside: Outside) -> tuple[int, list[Channel]]:
        """Wait for the command, and for every restart; the last exit code, and the output that others still hold open."""
        restarts, signals = self._restarts, self._signals
        while True:
            restarts.begins(pid, outside)
            code = _wait_for(pid)
            signals.command_ended()
            restarts.look_at_end(code)
            early = code != 0 or restarts.has_ended_it or signals.requested is not None
            if not (early and restarts.trains):
                self._info.note(ended=time.time(), exit_code=code)
            held = self._streams.finish(signals.hurry)
            again = restarts.after(code, self._log, outside) if early else None
            if again is None:
                if not early:
                    restarts.ended_well(self._log)
                return code, held
            _let_go(held)
            self._printed.restarts()
            self._window.streams = self._streams = self._new_streams()
            pid = self._start(again)
            self._copy_output(pid)

    def _start(self, launch: Launch) -> int:
        pid = _start(launch, self._streams, self._signals, self._leader)
        self._info.note(pid=pid)
        return pid

    def _copy_output(self, pid: int) -> None:
        self._streams.start()
        self._signals.to(pid)

    def _new_streams(self) -> Streams:
        return Streams(self._copy, self._trouble.step_back)

    def _copy(self, part: bytes, channel: int) -> None:
        self._log.put(part)
        self._printed.put(part, channel)

    def _note_facts(self) -> None:
        self._info.note(**facts_later(self._launch.command.arguments))


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
