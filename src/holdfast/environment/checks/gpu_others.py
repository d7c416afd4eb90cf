"""Who else computes on the cards, and how much of their memory is taken before the run begins?"""

from __future__ import annotations

import contextlib
from typing import Any

from holdfast.environment.check import Check, Fix, Verdict, note, ok, problem, skipped, together, warning
from holdfast.environment.machine import Machine
from holdfast.environment.nvidia import Card
from holdfast.units import count, size

_OF_THE_DRIVER = 1 << 30  # an idle H200 reports 0.5 GB in use, and no process
_SHARE, _FULL = 0.05, 0.9


def ask(machine: Machine) -> Verdict:
    """One answer for all cards."""
    cards = machine.nvidia.cards
    if not cards:
        return skipped("no NVIDIA GPU to share")
    verdicts = [verdict for card in cards if (verdict := _of_card(card)) is not None]
    if verdicts:
        return together(verdicts)
    free = ", ".join(size(card.free) for card in cards)
    return ok(f"no other process; free: {free}", free=[card.free for card in cards])


def _of_card(card: Card) -> Verdict | None:
    if not card.total or card.used < max(_OF_THE_DRIVER, _SHARE * card.total):
        return _quiet(card)
    users = [_user(pid, used) for pid, used in card.processes]
    facts = {f"card {card.index} used": card.used, f"card {card.index} free": card.free, f"card {card.index} processes": users}
    level = problem if card.used >= _FULL * card.total else warning
    taken = f"GPU {card.index}: {size(card.used)} of {size(card.total)} are taken"
    if not users:
        fix = Fix(
            "another container or a hung process holds it: see who has the device open",
            ("sudo fuser -v /dev/nvidia*",),
        )
        return level(f"{taken}, by no visible process", fix, **facts)
    named = ", ".join(_named(user) for user in users[:3]) + (f" and {len(users) - 3} more" if len(users) > 3 else "")
    return level(f"{taken} by {count(len(users), 'process', 'processes')}: {named}", *_fixes(card, users), **facts)


def _quiet(card: Card) -> Verdict | None:
    """A few processes that take next to nothing."""
    if not card.processes:
        return None
    users = [_user(pid, used) for pid, used in card.processes]
    message = f"GPU {card.index}: {count(len(users), 'process', 'processes')}, {size(card.used)} taken"
    return note(message, **{f"card {card.index} processes": users})


def _user(pid: int, used: int | None) -> dict[str, Any]:
    import psutil

    row: dict[str, Any] = {"pid": pid, "memory": used}
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        row |= {"name": process.name(), "user": process.username()}
        row |= {"orphan": True} if process.ppid() == 1 else {}
    return row


def _named(user: dict[str, Any]) -> str:
    memory = f" {size(user['memory'])}" if user["memory"] else ""
    return f"{user.get('name', 'process')} {user['pid']}{memory}"


def _fixes(card: Card, users: list[dict[str, Any]]) -> list[Fix]:
    """Which process to end is the user's to say; one without its parent is probably left over."""
    left = [user for user in users if user.get("orphan") and "python" in str(user.get("name"))]
    fixes = [
        Fix(
            f"its parent is gone: a background run or a leftover; if it is not needed: kill {process['pid']}",
            (f"ps -o pid,user,lstart,args -p {process['pid']}",),
        )
        for process in left
    ]
    return [*fixes, Fix("see what they are; wait for them, or use another GPU", (f"nvidia-smi -i {card.index}",))]


CHECK = Check(name="gpu-others", asks="other processes on the GPUs", ask=ask, seconds=30.0)
