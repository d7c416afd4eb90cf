"""Node 0 of several: decides for all nodes when an attempt begins and ends, and notices a node that fails or is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.signals.nodes import END, ENDED, OVER, RUN, RUNNING, NodeState, Plan, read_nodes
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble
from holdfast.supervisor.launch import Launch
from holdfast.supervisor.listening import VARIABLE as LISTEN
from holdfast.supervisor.node_agent import TICK, Heard, Listener, NodeAgent, lost_after
from holdfast.supervisor.preemption import AGAIN

if TYPE_CHECKING:
    from holdfast.detectors.hang import Standing

_END_SECONDS = 60.0  # for the other nodes to end what they run
_TELL_SECONDS = 10.0  # for nodes without a shared folder to learn that it is over
Loss = Callable[[NodeState, float | None], None]
Replaced = Callable[[NodeState, float], None]


class Leader:
    """What node 0 does for the others.

    `on_loss` is called in a thread of its own, once an attempt: with a node whose command failed, or with one that was not
    heard of for so many seconds. `on_replaced` is called with one that was gone for so many seconds, and was started again.
    """

    def __init__(self, launch: Launch, run: RunFolder, trouble: Trouble) -> None:
        self._run, self._trouble, self._num_arguments = run, trouble, len(launch.command.arguments)
        self._agent = NodeAgent(run, 0, trouble, tells_ranks=False)
        self._listener, self._attempt, self._reported = Listener(), 0, False
        self._lost_after = lost_after()
        self.on_loss: Loss = lambda _node, _seconds: None
        self.on_replaced: Replaced = lambda _node, _seconds: None

    def start(self) -> None:
        """Start the agent of this node."""
        self._listener.hear(read_nodes(self._run))
        self._agent.on_tick = self._look
        self._agent.start()

    def begins(self, launch: Launch) -> None:
        """An attempt begins, on all nodes with this environment and these further words of the command."""
        self._attempt, self._reported = self._attempt + 1, False
        self._publish(
            RUN, environment=dict(launch.more), arguments=list(launch.command.arguments[self._num_arguments :]), line=launch.line
        )
        self._agent.begins(self._attempt)

    def ends(self, code: int) -> list[Heard]:
        """The attempt has ended here with `code`: the other nodes end it too, and are waited for. Returns those that are lost."""
        self._agent.ended(code)
        self._publish(END)
        deadline = time.monotonic() + _END_SECONDS
        while any(heard.seconds < self._lost_after for heard in self._running()) and time.monotonic() < deadline:
            time.sleep(TICK)
        return self._running()

    def over(self, code: int) -> None:
        """There is no further attempt. Nodes without a shared folder learn it from our server, which ends with this process."""
        self._publish(OVER, code=code)
        self._agent.ended(code)
        if os.environ.get(LISTEN):
            self._wait_until_asked_twice()
        self._agent.stop()

    def _wait_until_asked_twice(self) -> None:
        """A node writes its state here, then reads the plan: when it writes again, it has read what is there now."""
        first = {number: heard.state.beat for number, heard in self._listener.heard.items() if heard.seconds < self._lost_after}
        seen: dict[int, set[int]] = {number: {beat} for number, beat in first.items()}
        deadline = time.monotonic() + _TELL_SECONDS
        while any(len(beats) < 3 for beats in seen.values()) and time.monotonic() < deadline:
            time.sleep(TICK)
            for number, beats in seen.items():
                beats.add(self._listener.heard[number].state.beat)

    def failed(self) -> list[NodeState]:
        """The nodes whose command ended badly in this attempt, with what each printed last."""
        ended = (heard.state for heard in self._listener.heard.values() if heard.state.state == ENDED)
        return [state for state in ended if state.attempt == self._attempt and state.code not in (None, 0, AGAIN)]

    def standings(self) -> list[Standing]:
        """How the ranks of the other nodes stand, as their agents say."""
        from holdfast.detectors.hang import Standing

        near = [node.state for node in self._running() if node.seconds < self._lost_after]
        return [Standing(**rank) for node in near for rank in node.ranks]

    def _running(self) -> list[Heard]:
        """The nodes that run this attempt, or did when they were last heard of."""
        heard = list(self._listener.heard.values())
        return [node for node in heard if node.state.attempt == self._attempt and node.state.state == RUNNING]

    def _look(self) -> None:
        states = [state for state in read_nodes(self._run) if state.node]
        agents = {state.node: state.agent for state in states}
        for heard in self._running():
            if agents.get(heard.state.node, heard.state.agent) != heard.state.agent and not self._reported:
                self.on_replaced(heard.state, heard.seconds)
        self._listener.hear(states)
        if self._reported or self._agent.state.state != RUNNING:
            return
        lost = next((node for node in self._running() if node.seconds >= self._lost_after), None)
        failed = self.failed()
        if lost is None and not failed:
            return
        self._reported = True
        node, seconds = (failed[0], None) if failed or lost is None else (lost.state, lost.seconds)
        threading.Thread(target=self.on_loss, args=(node, seconds), name="holdfast-loss", daemon=True).start()

    def _publish(self, state: str, **more: Any) -> None:
        plan = Plan(agent=self._agent.state.agent, attempt=self._attempt, state=state, run=str(self._run.path), **more)
        try:
            plan.write(self._run)
        except OSError as error:
            self._trouble.step_back("telling the other nodes what to do", error)
