"""Any node of several but the first: runs the command when node 0 says so, ends it when node 0 says so."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import Unreachable, UsageError
from holdfast.signals.nodes import END, OVER, RUN, RUNNING, Plan, read_node, read_plan
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.launch import Launch
from holdfast.supervisor.node_agent import TICK, Heard, Listener, NodeAgent, lost_after

if TYPE_CHECKING:
    from holdfast.supervisor.node_link import NodeLink

_SAY_AFTER = 5.0  # seconds
_WAIT_SECONDS = 600.0  # for node 0 to come back; torchrun waits as long for a node


class Follower:
    """What a node knows of node 0's plan. `wanted_elsewhere` says whether this node is to end, whatever the plan."""

    def __init__(self, run: RunFolder, node: int, trouble: Trouble) -> None:
        self._run, self._trouble = run, trouble
        self.agent = NodeAgent(run, node, trouble, tells_ranks=True)
        self.agent.on_tick = self._look
        self._listener, self._lost_after = Listener(), lost_after()
        self._plan: Plan | None = None
        self._pid: int | None = None
        self._ending: threading.Thread | None = None
        self._told_lost: str | None = None  # the agent of node 0

    def next_plan(self, is_wanted: Callable[[], bool]) -> Plan | None:
        """Wait for the next attempt; None if there is none, or this node is not `wanted` any more."""
        done, begun, has_said = self._plan, time.monotonic(), False
        while is_wanted():
            self._hear()
            plan = self._current()
            if plan is not None and plan.state == OVER and (done is None or plan.agent == done.agent):
                return None
            if plan is not None and plan.state == RUN and (done is None or _key(plan) != _key(done)):
                self._plan = plan
                return plan
            waited = max(0.0, time.monotonic() - begun)
            leader = self._listener.heard.get(0)
            if (leader is None or leader.seconds > self._lost_after) and waited > _SAY_AFTER and not has_said:
                has_said = True
                self._tell_lost(leader)
                _print("waiting for node 0: start the same command there, with NODE_RANK=0")
            if (leader is None or leader.seconds > _WAIT_SECONDS) and waited > _WAIT_SECONDS:
                _print(f"node 0 was not heard of for {waited:.0f} s")
                return None
            time.sleep(TICK)
        return None

    def begins(self, pid: int, plan: Plan) -> None:
        """The command was started."""
        self._pid, self._ending = pid, None
        self.agent.begins(plan.attempt)

    def finish_ending(self) -> None:
        """Wait until nothing of the command is left, if it was ended from here."""
        if self._ending is not None:
            self._ending.join()

    def _hear(self) -> None:
        state = read_node(self._run, 0)
        self._listener.hear([state] if state is not None else [])

    def _current(self) -> Plan | None:
        """The plan of the agent that leads now; an old one is of nobody."""
        plan, leader = read_plan(self._run), self._listener.heard.get(0)
        return plan if plan is not None and leader is not None and plan.agent == leader.state.agent else None

    def _look(self) -> None:
        if self.agent.state.state != RUNNING or self._ending is not None:
            return
        self._hear()
        plan, leader = self._current(), self._listener.heard.get(0)
        if plan is not None and self._plan is not None and (plan.state == END or _key(plan) != _key(self._plan)):
            self._end("node 0 ends this attempt")
        elif leader is not None and leader.seconds > self._lost_after:
            self._tell_lost(leader)
            self._end("node 0 is lost")

    def _end(self, why: str) -> None:
        from holdfast.supervisor.ending import end_all

        _print(why)
        self._ending = threading.Thread(target=end_all, args=(self._run, self._pid), name="holdfast-ending", daemon=True)
        self._ending.start()

    def _tell_lost(self, leader: Heard | None) -> None:
        """Report node 0 once, with the stacks of this node before it is ended: nobody else can."""
        if leader is None or leader.state.agent == self._told_lost:
            return
        self._told_lost = leader.state.agent
        from holdfast.probe.stacks.everywhere import take_everywhere
        from holdfast.supervisor.losses import lost_finding, tell

        stacks, _ = take_everywhere(self._run)
        tell(self._run, lost_finding(self._run, leader.state, leader.seconds, stacks))


def planned(launch: Launch, run: RunFolder, plan: Plan) -> Launch:
    """The launch of an attempt as node 0 planned it; paths in the run folder are those of this node."""

    def here(text: str) -> str:
        inside = plan.run and Path(text).is_relative_to(plan.run)
        return str(run.path / Path(text).relative_to(plan.run)) if inside else text

    arguments = (*launch.command.arguments, *(here(word) for word in plan.arguments))
    command = replace(launch.command, arguments=arguments) if plan.arguments else launch.command
    first, *more = plan.line.split("\n")
    return replace(
        launch,
        command=command,
        line="\n".join([launch.line if plan.attempt == 1 else first, *more]),
        more={name: here(text) for name, text in plan.environment.items()},
    )


def join(launch: Launch, run: RunFolder, trouble: Trouble) -> NodeLink | None:
    """The link to the first node, if this one does not share its folder. Raises UsageError and Unreachable."""
    if launch.settings.join is None:
        return None
    from holdfast.probe.address import parse
    from holdfast.probe.remote import Remote, keep_token
    from holdfast.supervisor.node_link import NodeLink

    address = parse(launch.settings.join)
    if address is None:
        raise UsageError(f"{launch.settings.join!r} is not an address.", fix="--join node0:8080, as node 0 says in --listen")
    link = NodeLink(run, launch.settings.node, Remote(replace(address, run=run.name)), trouble)
    begun, has_said = time.monotonic(), False
    while True:
        try:
            link.start()
        except Unreachable:
            if time.monotonic() - begun > _WAIT_SECONDS:
                raise
            if not has_said and time.monotonic() - begun > _SAY_AFTER:
                has_said = True
                _print(f"waiting for node 0 at {address}: start it with --listen {address}")
            time.sleep(1.0)
        else:
            keep_token(address)
            return link


def _key(plan: Plan) -> tuple[str, int]:
    return plan.agent, plan.attempt


def _print(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"holdfast: {text}\n".encode())
