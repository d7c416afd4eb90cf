"""The agent of a node: tells the other nodes how this one is, and takes stacks for them, in background threads."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from holdfast.probe.niceness import be_nice
from holdfast.signals.nodes import ENDED, RUNNING, NodeState, new_agent
from holdfast.signals.run_folder import RunFolder
from holdfast.signals.trouble import Trouble

TICK = 0.3
_LOST_SECONDS = 60.0  # network file systems show changes late


def lost_after() -> float:
    """Seconds without a sign after which a node counts as lost; HOLDFAST_NODE_AFTER sets them."""
    try:
        return max(1.0, float(os.environ.get("HOLDFAST_NODE_AFTER") or _LOST_SECONDS))
    except ValueError:
        return _LOST_SECONDS


@dataclass(slots=True)
class Heard:
    """When something of a node was last seen to change."""

    state: NodeState
    at: float

    @property
    def seconds(self) -> float:
        """Seconds since then."""
        return time.monotonic() - self.at


class Listener:
    """Follows what nodes write, by their counters."""

    def __init__(self) -> None:
        self.heard: dict[int, Heard] = {}
        self._old: dict[int, NodeState] = {}  # as they were at the first look: perhaps of agents that are long gone

    def hear(self, states: Sequence[NodeState]) -> None:
        """Compare with the look before; a node is heard once it has changed something."""
        for state in states:
            old = self._old.setdefault(state.node, state)
            before = self.heard.get(state.node)
            if (state.agent, state.beat) != ((before.state if before else old).agent, (before.state if before else old).beat):
                self.heard[state.node] = Heard(state, time.monotonic())


class NodeAgent:
    """Writes the state of this node a few times a second; `on_tick` is called each time."""

    def __init__(self, run: RunFolder, node: int, trouble: Trouble, *, tells_ranks: bool) -> None:
        self._run, self._trouble, self._tells_ranks = run, trouble, tells_ranks
        self.state = NodeState(node=node, host=socket.gethostname(), agent=new_agent())
        self.on_tick: Callable[[], None] = lambda: None
        self._progress: Any = None
        self._stop, self._changing = threading.Event(), threading.Lock()
        self._threads = [threading.Thread(target=work, name="holdfast-node", daemon=True) for work in (self._tell, self._answer)]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Say that this node has ended, and stop."""
        self._stop.set()
        self._threads[0].join(2.0)

    def begins(self, attempt: int) -> None:
        """The command was started."""
        if self._progress is not None:
            self._progress.begin_again()
        self._change(attempt=attempt, state=RUNNING, code=None, ranks=(), log="", requested=None)

    def ended(self, code: int, *, log: str = "", requested: str | None = None) -> None:
        """The command has ended."""
        self._change(state=ENDED, code=code, ranks=(), log=log, requested=requested)

    def _change(self, **changes: Any) -> None:
        with self._changing:
            self.state = replace(self.state, **changes)
        self._write()

    def _write(self) -> None:
        with self._changing:
            self.state = replace(self.state, beat=self.state.beat + 1)
            try:
                self.state.write(self._run)
            except OSError as error:
                self._trouble.step_back("telling other nodes about this one", error)

    def _tell(self) -> None:
        be_nice()
        while not self._stop.wait(TICK):
            try:
                if self._tells_ranks and self.state.state == RUNNING:
                    ranks = self._standings()
                    with self._changing:
                        self.state = replace(self.state, ranks=ranks)
                self._write()
                self.on_tick()
            except Exception as error:  # noqa: BLE001 - the training continues
                self._trouble.step_back("watching the other nodes", error)

    def _standings(self) -> list[Mapping[str, Any]]:
        """How the ranks of this node stand; one that has made no step yet is not a rank."""
        if self._progress is None:
            from holdfast.supervisor.progress import Progress

            self._progress = Progress(self._run, TICK)
        return [asdict(standing) for standing in self._progress.look() if standing.step is not None]

    def _answer(self) -> None:
        be_nice()
        from holdfast.probe.stacks.everywhere import StackRequests

        requests = StackRequests(self._run, self.state.node)
        while not self._stop.wait(TICK):
            try:
                requests.answer()
            except Exception as error:  # noqa: BLE001 - who asks hears nothing, and says so
                self._trouble.step_back("taking stacks for another node", error)
