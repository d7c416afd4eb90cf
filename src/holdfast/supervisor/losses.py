"""A node that failed, or is not heard of any more: who is missing and where the others wait, before anything is ended."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.detectors.finding import Finding
from holdfast.probe.stacks.everywhere import take_everywhere
from holdfast.probe.stacks.frames import ProcessStacks
from holdfast.probe.stacks.keep import keep_stacks
from holdfast.probe.stacks.sentence import explain
from holdfast.probe.stacks.together import rank_words
from holdfast.signals.nodes import NodeState
from holdfast.signals.pulse import read_pulse
from holdfast.signals.run_folder import RunFolder
from holdfast.supervisor.node_agent import lost_after
from holdfast.supervisor.train_log import end_of_log, root_cause

_RAISED = re.compile(r"^(?:\[[^\]]{1,60}\]:?\s*)?(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)\b.*", re.MULTILINE)
_PEER_IS_GONE = re.compile(
    r"[Cc]onnection (?:was )?(?:reset|closed|refused|aborted)|[Bb]roken pipe|[Tt]imed? ?out|gloo|NCCL"
    r"|DistNetworkError|DistStoreError|Rendezvous|Socket"
)


def loss_finding(run: RunFolder, node: NodeState, seconds: float | None) -> Finding:
    """The finding of a node that failed, or was not heard of for so many seconds; the stacks of all others are kept with it."""
    stacks, _ = take_everywhere(run)
    if seconds is not None:
        return lost_finding(run, node, seconds, stacks)
    evidence = {"node": node.node, "host": node.host, "exit_code": node.code, **where_others_wait(run, stacks)}
    return Finding("process-died", step=_last_step(run), severity="critical", evidence=evidence)


def lost_finding(
    run: RunFolder, node: NodeState, seconds: float, stacks: Sequence[ProcessStacks], *, is_back: bool = False
) -> Finding:
    """The finding of a node that is lost, or was."""
    ranks = sorted({int(rank["rank"]) for rank in node.ranks})
    who = f" with {rank_words(ranks)}" if ranks else ""
    say = (
        f"node {node.node} ({node.host}){who} was not heard of for {seconds:.0f} s{' and was started again' if is_back else ''}."
    )
    waits = where_others_wait(run, stacks)
    evidence: dict[str, Any] = {"node": node.node, "host": node.host, "lost_ranks": ranks, "seconds": round(seconds, 1)}
    evidence |= {"limit": lost_after(), "ended": say, "say": " ".join([say, *filter(None, [waits.get("others")])]), **waits}
    return Finding("process-died", step=_last_step(run), severity="critical", evidence=evidence)


def where_others_wait(run: RunFolder, stacks: Sequence[ProcessStacks]) -> dict[str, Any]:
    """Keep the stacks, and say what the ranks that are left are doing."""
    if not any(stack.threads for stack in stacks if stack.is_rank):
        return {}
    evidence: dict[str, Any] = {"others": explain(stacks).say}
    with contextlib.suppress(OSError):
        evidence["stacks"] = str(keep_stacks(run, stacks, when=time.time()).relative_to(run.path))
    return evidence


def failed_first(run: RunFolder, log_from: int, failed: Sequence[NodeState]) -> NodeState | None:
    """The node where it began, by what the nodes have printed, with the code of the rank; None if that was this one.

    All nodes end within a second, so the order says nothing: an error that only says that a peer is gone is a consequence.
    """
    if not failed or not _is_consequence(end_of_log(run.path / "train.log", log_from)):
        return None
    first = next((node for node in failed if not _is_consequence(node.log)), None)
    if first is None or (root := root_cause(first.log)) is None or root[1] >= 0:
        return first
    return replace(first, code=128 - root[1])


def _is_consequence(log: str) -> bool:
    root = root_cause(log)
    if root is not None and root[1] < 0:
        return root[1] == -signal.SIGTERM
    of_rank = f"[rank{root[0]}]" if root is not None else ""
    errors = [line for line in _RAISED.findall(log) if line.startswith(of_rank) and "ChildFailedError" not in line]
    return bool(errors) and all(_PEER_IS_GONE.search(line) for line in errors)


def tell(run: RunFolder, finding: Finding) -> None:
    """Into the journal, with its diagnosis. A disk that refuses is ignored."""
    from holdfast.diagnosis.diagnosis import diagnose

    with contextlib.suppress(OSError):
        run.journal.write("finding", **finding.as_row())
        run.journal.write("diagnosis", **diagnose([finding], around=list(run.journal)).as_row())


def steps_made(run: RunFolder, *, without: str) -> int:
    """How many steps the ranks of all other hosts have made, in all their trainings."""
    pulses = [read_pulse(recording) for recording in run.recordings() if recording.info().get("host") != without]
    return sum(pulse.steps for pulse in pulses if pulse is not None)


def _last_step(run: RunFolder) -> int:
    pulses = [pulse for recording in run.recordings() if (pulse := read_pulse(recording)) is not None]
    return max((pulse.steps - 1 for pulse in pulses if pulse.steps), default=0)
