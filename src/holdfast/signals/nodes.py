"""The nodes of a run that several machines share: small files in `nodes/` of its folder.

nodes/
  1.json       what the agent (`holdfast run`) of node 1 knows about its node, rewritten a few times a second
  plan.json    what node 0 has decided for all: run this attempt, end it, or it is over
  stacks/      requests for stacks, and the nodes' answers

Liveness is seen from a counter that changes, never from clocks, which differ between machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from holdfast.signals.run_folder import RunFolder

FOLDER, PLAN = "nodes", "plan.json"
RUNNING, ENDED = "running", "ended"  # states of a node
RUN, END, OVER = "run", "end", "over"  # states of a plan
Content = TypeVar("Content", bound="NodeState | Plan")


def new_agent() -> str:
    """A mark that no other agent has, on any machine."""
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node as its agent sees it; `attempt` is the one that runs or has ended there with `code`."""

    node: int
    host: str
    agent: str
    beat: int = 0
    attempt: int = 0
    state: str = ENDED
    code: int | None = None
    ranks: Sequence[Mapping[str, Any]] = ()  # how each rank stands: see detectors.hang.Standing
    requested: str | None = None  # the signal by which a person ended it there
    log: str = ""  # the end of what the command printed, if it ended badly

    def write(self, run: RunFolder) -> None:
        """Write it in place: on a network file system a file that is replaced is seen late. Raises OSError."""
        _write_in_place(run.path / FOLDER / f"{self.node}.json", asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What node 0 (whose agent is `agent`) has decided; `environment` and `words` are added to the command of every node."""

    agent: str
    attempt: int
    state: str
    run: str = ""  # the run folder, as node 0 sees it
    code: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    line: str = ""

    def write(self, run: RunFolder) -> None:
        """Make it known to all nodes. Raises OSError."""
        _write_in_place(run.path / FOLDER / PLAN, asdict(self))


def read_nodes(run: RunFolder) -> list[NodeState]:
    """All nodes that have written something, by number; a file that is being written is skipped this time."""
    with contextlib.suppress(OSError):
        paths = [path for path in (run.path / FOLDER).iterdir() if path.stem.isdecimal() and path.suffix == ".json"]
        states = [_read(path, NodeState) for path in sorted(paths, key=lambda path: int(path.stem))]
        return [state for state in states if state is not None]
    return []


def read_node(run: RunFolder, number: int) -> NodeState | None:
    """One node; None if it has written nothing, or is writing just now."""
    return _read(run.path / FOLDER / f"{number}.json", NodeState)


def read_plan(run: RunFolder) -> Plan | None:
    """What node 0 has decided last."""
    return _read(run.path / FOLDER / PLAN, Plan)


def _write_in_place(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    data = json.dumps(content, ensure_ascii=False, default=str).encode(errors="replace")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, data)
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)


def _read(path: Path, kind: type[Content]) -> Content | None:
    try:
        content = json.loads(path.read_bytes())
        return kind(**{attribute.name: content[attribute.name] for attribute in fields(kind) if attribute.name in content})
    except (OSError, ValueError, TypeError):
        return None
