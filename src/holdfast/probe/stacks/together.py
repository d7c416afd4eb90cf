"""Ranks that wait for each other: who is in which collective, and who is missing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from holdfast.probe.stacks.alone import locked, overdue, whereabouts
from holdfast.probe.stacks.frames import ProcessStacks, Thread
from holdfast.probe.stacks.verdict import Look, Verdict
from holdfast.probe.stacks.whereabouts import native_part, place, user_frame

_C10D = re.compile(r"torch/distributed/(distributed_c10d|_functional_collectives|rendezvous)\.py$")
_JOINING = ("init_process_group", "_new_process_group_helper", "_store_based_barrier", "rendezvous", "new_group")
_NATIVE = re.compile(r"c10d::|gloo::|nccl|Nccl|NCCL")
_ENGINE = "_engine_run_backward"
_BACKWARD = "the backward pass, where the gradients of all ranks meet,"
_REDUCER = re.compile(r"c10d::Reducer")


def collective_verdict(look: Look, world: int | None = None) -> Verdict | None:
    """What to say if at least one rank waits in a collective; None if none does."""
    ranks = [trainer for trainer in look.trainers if trainer.is_rank or trainer.main is not None]
    inside = [(rank, name) for rank in ranks if rank.main is not None and (name := collective_of(rank.main)) is not None]
    inside = inside or [(stack, _BACKWARD) for stack in _in_backward(look, ranks)]
    if not inside:
        return None
    missing = [rank for rank in ranks if all(rank is not other for other, _ in inside)]
    waiting = [stack for stack, _ in inside]
    if missing:
        return _missing(look, inside, missing)
    if len({name for _, name in inside}) > 1:
        return _different(look, inside)
    name, first = inside[0][1], waiting[0]
    if name.startswith("init_process_group"):
        why = "the others are missing: wrong WORLD_SIZE or MASTER_ADDR, or a rank died at its start"
    elif world is not None and world <= len(ranks):
        why = "data does not get through (network, or mismatched sizes)"
    else:
        why = "the rank they wait for is on another machine, or has ended"
    all_of = f"{_who(waiting)} {'wait' if len(waiting) > 1 else 'waits'} in {name}{_line(first)}{look.since(first, 'collective')}"
    evidence = {"kind": "all-wait", "collective": name, "ranks": [stack.rank for stack in waiting]}
    return _verdict(first, f"{all_of}: {why}.{look.silent(first)}", evidence)


def who_waits_for_it(look: Look) -> str:
    """Another sentence: the ranks that wait in a collective meanwhile; empty if none do."""
    inside = [
        (trainer, name)
        for trainer in look.trainers
        if trainer.main is not None and (name := collective_of(trainer.main)) is not None
    ]
    if not inside:
        return ""
    waiting = [stack for stack, _ in inside]
    return f" {_who(waiting).capitalize()} {'wait' if len(waiting) > 1 else 'waits'} for it in {inside[0][1]}."


def collective_of(thread: Thread) -> str | None:
    """The collective that a thread waits in: all_reduce, barrier, …; None if it is in none."""
    names = [f.func.rpartition(".")[2] for f in thread.python if _C10D.search(f.file)]
    public = [name for name in names if not name.startswith(("_", "<", "wrapper"))]
    if any(name in _JOINING for name in names):
        return "init_process_group (the ranks have not met yet)"
    if public:
        return public[-1]  # the outermost: what the script called
    native = native_part(thread)
    if any(_REDUCER.search(frame.func) for frame in native):
        return "the gradient reduction of DistributedDataParallel"
    if not thread.active and any(_NATIVE.search(frame.func) for frame in native):
        return "a collective"
    return None


def _in_backward(look: Look, ranks: Sequence[ProcessStacks]) -> list[ProcessStacks]:
    """Ranks that stand still in a backward pass while another is somewhere else: without native frames nothing says more."""
    waiting = [
        rank for rank in ranks if rank.main is not None and _waits_in_backward(rank.main, look.earlier_thread(rank, rank.main))
    ]
    late = any(overdue(look, stack) for stack in waiting)
    return waiting if len(waiting) < len(ranks) and late else []


def _waits_in_backward(main: Thread, before: Thread | None) -> bool:
    return all(
        not thread.active and any(f.func == _ENGINE for f in thread.python) for thread in (main, before) if thread is not None
    )


def odd_one(look: Look) -> tuple[ProcessStacks, str] | None:
    """The one rank that is somewhere else than all others, and a sentence; None if there is none such."""
    places: dict[object, list[ProcessStacks]] = {}
    for trainer in look.trainers:
        frame = user_frame(trainer.main) if trainer.main is not None else None
        places.setdefault((frame.func, frame.file, frame.line) if frame is not None else None, []).append(trainer)
    if len(places) != 2 or min(map(len, places.values())) != 1 or max(map(len, places.values())) < 2:
        return None
    (odd,), those = sorted(places.values(), key=len)
    return odd, f"{_who(those)} each: {whereabouts(those[0])}; {_role(odd)} {whereabouts(odd)}."


def rank_words(ranks: Sequence[int]) -> str:
    """`rank 7`, `ranks 0 and 1`, `63 ranks (0-6, 8-63)`."""
    ordered = sorted(ranks)
    if len(ordered) <= 2:
        return ("rank " if len(ordered) == 1 else "ranks ") + " and ".join(map(str, ordered))
    parts: list[list[int]] = []
    for number in ordered:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    spans = ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
    return f"{len(ordered)} ranks ({spans})"


def _missing(look: Look, inside: Sequence[tuple[ProcessStacks, str]], missing: Sequence[ProcessStacks]) -> Verdict:
    first, name = inside[0]
    waiting = [stack for stack, _ in inside]
    wait = f"{_who(waiting)} {'wait' if len(waiting) > 1 else 'waits'} in {name}{_line(first)}{look.since(first, 'collective')}"
    missing_rank = missing[0]
    alone = locked(look, missing_rank) if missing_rank.main is not None else None
    elsewhere = "; ".join(f"{_role(stack)} {whereabouts(stack)}" for stack in missing[:3])
    more = f"; and {len(missing) - 3} more" if len(missing) > 3 else ""
    after = " The others wait for it." if len(missing) == 1 else " The others wait for them."
    evidence: dict[str, object] = {
        "kind": "missing",
        "collective": name,
        "ranks": [stack.rank for stack in waiting],
        "missing": [stack.rank for stack in missing],
    }
    if alone is None:
        return _verdict(missing_rank, f"{wait}, {elsewhere}{more}.{after}{look.silent(first)}", evidence)
    evidence |= {"missing_kind": alone.evidence.get("kind"), "missing_waits": alone.evidence.get("waits")}
    return _verdict(missing_rank, f"{wait}, {elsewhere}{more}.{after} {alone.say[:1].upper()}{alone.say[1:]}", evidence)


def _different(look: Look, inside: Sequence[tuple[ProcessStacks, str]]) -> Verdict:
    by_name: dict[str, list[ProcessStacks]] = {}
    for stack, name in inside:
        by_name.setdefault(name, []).append(stack)
    parts = [f"{_who(those)} in {name}{_line(those[0])}" for name, those in by_name.items()]
    rare = min(by_name.values(), key=len)[0]
    say = f"the ranks are in different collectives: {', '.join(parts)}. None of them can finish.{look.silent(rare)}"
    named = {name: [stack.rank for stack in those] for name, those in by_name.items()}
    return _verdict(rare, say, {"kind": "mismatch", "collectives": named})


def _verdict(missing_rank: ProcessStacks, say: str, evidence: Mapping[str, object]) -> Verdict:
    main = missing_rank.main
    frame = user_frame(main) if main is not None else None
    return Verdict(
        "collective-stall", say, missing_rank.pid, missing_rank.rank, main.name if main else None, frame, dict(evidence)
    )


def _who(those: Sequence[ProcessStacks]) -> str:
    ranks = [stack.rank for stack in those if stack.rank is not None]
    return rank_words(ranks) if ranks else those[0].role


def _role(stacks: ProcessStacks) -> str:
    return f"rank {stacks.rank}" if stacks.is_rank else stacks.role


def _line(stacks: ProcessStacks) -> str:
    frame = user_frame(stacks.main) if stacks.main is not None else None
    return f" in {place(frame)}" if frame is not None else ""
