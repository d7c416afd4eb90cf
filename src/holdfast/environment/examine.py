"""Asks the checks, each with its time limit, and hands over the answers in order.

Heavy checks take turns in one lane and light ones in another, so that what is measured is not measured against itself; those
that only wait hold nobody up. A check that does not come back is left behind in its thread, and its silence is the answer.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.environment.check import Check, Fix, Verdict, problem, warning
from holdfast.environment.machine import Machine

_FIX = Fix("a hung disk, driver or network also stops your programs; `--only` runs this check alone")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one check said, and how long it took."""

    check: Check
    verdict: Verdict
    seconds: float


def examine(machine: Machine, checks: Sequence[Check]) -> Iterator[Answer]:
    """The answers, in the order of the checks, each as soon as it and those before it are there."""
    answers: queue.Queue[Answer] = queue.Queue()
    lanes = [[check for check in checks if check.heavy == heavy and not check.waits] for heavy in (True, False)]
    for lane in (*lanes, *([check] for check in checks if check.waits)):
        threading.Thread(target=_work, args=(machine, lane, answers), name="holdfast-checks", daemon=True).start()
    waiting: dict[str, Answer] = {}
    for check in checks:
        while check.name not in waiting:
            answer = answers.get()
            waiting[answer.check.name] = answer
        yield waiting.pop(check.name)


def _work(machine: Machine, lane: list[Check], answers: queue.Queue[Answer]) -> None:
    for check in lane:
        answers.put(ask(machine, check))


def ask(machine: Machine, check: Check) -> Answer:
    """Ask one check, within its time limit."""
    result: list[Verdict] = []
    begun = time.monotonic()
    thread = threading.Thread(target=lambda: result.append(_shielded(machine, check)), name=f"holdfast-{check.name}", daemon=True)
    thread.start()
    thread.join(check.seconds)
    seconds = time.monotonic() - begun
    verdict = result[0] if result else problem(f"no answer in {check.seconds:.0f} s", _FIX, seconds=check.seconds)
    return Answer(check, verdict, seconds)


def _shielded(machine: Machine, check: Check) -> Verdict:
    try:
        return check.ask(machine)
    except Exception as error:  # noqa: BLE001 - one check that fails must not take the others with it
        message = " ".join(str(error).split())
        return warning(
            f"the check itself failed: {type(error).__name__}: {message}", Fix("please report it"), error=type(error).__name__
        )
