"""The stacks of a run on all of its nodes: those of this machine are read, the agents of the others are asked.

A request is a file in `nodes/stacks/`; the agent of each node answers with a file beside it.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.probe.stacks.frames import ProcessStacks, as_rows, from_rows
from holdfast.probe.stacks.take import take_stacks
from holdfast.signals.nodes import FOLDER, RUNNING, NodeState, new_agent, read_nodes
from holdfast.signals.run_folder import RunFolder, replace_text

_STACKS = "stacks"
_LOOK_SECONDS = 0.05
_ANSWER_SECONDS = 5.0  # for the agent to see the request, and for its answer to be seen
_KEPT = 16  # requests and answers


def take_everywhere(
    run: RunFolder, *, native: bool = True, locals_: bool = False, seconds: float = 1.3, after: Sequence[ProcessStacks] = ()
) -> tuple[list[ProcessStacks], list[str]]:
    """Stacks of all processes of the run, by rank, each with its machine if there are several; and who did not answer."""
    others = [node for node in read_nodes(run) if node.host != socket.gethostname() and node.state == RUNNING]
    if not others:
        return take_stacks(run, native=native, locals_=locals_, seconds=seconds, after=after), []
    own = socket.gethostname()
    request = _ask(run, {"native": native, "locals": locals_, "seconds": seconds})
    own_stacks = [stack for stack in after if stack.host == own]
    stacks = [
        replace(stack, host=own) for stack in take_stacks(run, native=native, locals_=locals_, seconds=seconds, after=own_stacks)
    ]
    answers = _answers(request, others, seconds + _ANSWER_SECONDS)
    for rows in answers.values():
        stacks += from_rows(rows)
    silent = [f"{other.host} (node {other.node}) does not answer" for other in others if other.node not in answers]
    _clean_up(request)
    return sorted(stacks, key=lambda stack: (stack.rank is None, stack.rank or 0, not stack.is_rank)), silent


class StackRequests:
    """The agent's end: answers what it has not answered yet."""

    def __init__(self, run: RunFolder, node: int) -> None:
        self._run, self._node = run, node
        self._folder = run.path / FOLDER / _STACKS
        self._done = {path.name for path in self._requests()}  # those of earlier agents

    def answer(self) -> None:
        """Take the stacks that are wanted. A disk that refuses is ignored: who asks waits for a few seconds only."""
        for path in self._requests():
            if path.name in self._done:
                continue
            self._done.add(path.name)
            with contextlib.suppress(OSError, ValueError, KeyError):
                wanted: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                taken = take_stacks(
                    self._run, native=wanted["native"], locals_=wanted["locals"], seconds=float(wanted["seconds"])
                )
                rows = as_rows(replace(stack, host=socket.gethostname()) for stack in taken)
                replace_text(_answer_path(path, self._node), json.dumps(rows, ensure_ascii=False))

    def _requests(self) -> list[Path]:
        with contextlib.suppress(OSError):
            return [path for path in self._folder.iterdir() if path.name.endswith(".request") and path.name[0] != "."]
        return []


def _ask(run: RunFolder, wanted: dict[str, Any]) -> Path:
    folder = run.path / FOLDER / _STACKS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{new_agent()}.request"
    replace_text(path, json.dumps(wanted))
    return path


def _answers(request: Path, others: Sequence[NodeState], seconds: float) -> dict[int, list[dict[str, Any]]]:
    answers: dict[int, list[dict[str, Any]]] = {}
    deadline = time.monotonic() + seconds
    while len(answers) < len(others) and time.monotonic() < deadline:
        for other in others:
            if other.node not in answers:
                with contextlib.suppress(OSError, ValueError):
                    answers[other.node] = json.loads(_answer_path(request, other.node).read_text(encoding="utf-8"))
        time.sleep(_LOOK_SECONDS)
    return answers


def _answer_path(request: Path, node: int) -> Path:
    return request.with_suffix(f".{node}.json")


def _clean_up(request: Path) -> None:
    """Remove this request with its answers, and what others have left."""
    with contextlib.suppress(OSError):
        files = sorted(request.parent.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in files:
            if path.name.startswith(request.stem) or path in files[:-_KEPT]:
                path.unlink(missing_ok=True)
