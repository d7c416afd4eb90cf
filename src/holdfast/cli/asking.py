"""What the verbs that ask a live training share: how answers are shown, and which exit code they give."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.errors import ControlUnreachable

if TYPE_CHECKING:
    from holdfast.probe.changing import Told

Seconds = Annotated[
    float, typer.Option("--seconds", min=0.1, metavar="S", help="Wait at most so long for a step, and let it take so long.")
]
Rank = Annotated[int | None, typer.Option("--rank", min=0, metavar="N", help="Only this rank.", show_default=False)]


def change_all(
    target: list[str] | None, request: dict[str, Any], *, everything: bool = False, seconds: float = 30.0, rank: int | None = None
) -> list[Told]:
    """Have a change made in every rank of what is named, here and on other machines, or only in the rank of that number."""
    from holdfast.probe.changing import change, change_ranks
    from holdfast.probe.cluster import find
    from holdfast.probe.cluster_ranks import crews_of, jobs_in, ranks_in, refuse_part, refuse_several

    cluster = find(target or [], everything=everything, live=True)
    if not everything:
        refuse_several(cluster)
    if cluster.is_one_run_here:
        return change(cluster.here[0], request, seconds=seconds, rank=rank)
    crews = crews_of(cluster, rank)
    if rank is None:
        refuse_part(cluster, crews)
    return [told for job in jobs_in(crews) if ranks_in(job) for told in change_ranks(ranks_in(job), request, seconds=seconds)]


def finish(told: Sequence[Told], *, as_json: bool, words: Any = None) -> None:
    """Show what each rank answered, and leave with 1 if one of them failed, 2 if none could be asked."""
    if all(one.closed is not None for one in told):
        closed = next(one.closed for one in told if one.closed is not None)
        raise ControlUnreachable(closed.problem, fix=closed.fix)
    if as_json:
        _as_json(told)
    else:
        _show_all(told, words)
    if any(one.answer.get("ran") is False for one in told):
        raise typer.Exit(2)
    if not all(one.ok for one in told):
        raise typer.Exit(1)


def _as_json(told: Sequence[Told]) -> None:
    from holdfast.probe.far_rank import whose

    rows = [{**whose(one.recording), **one.answer} for one in told]
    print(json.dumps(rows[0] if len(rows) == 1 else rows, ensure_ascii=False))


def _show_all(told: Sequence[Told], words: Any) -> None:
    """Each rank in turn, or all at once where they say the same."""
    from holdfast.probe.far_rank import name_of

    first = told[0].answer
    alike = all({**one.answer, "number": 0} == {**first, "number": 0} for one in told)
    for one in told[:1] if alike else told:
        _show(
            one,
            f"{len(told)} ranks: " if alike and len(told) > 1 else f"{name_of(one.recording)}: " if len(told) > 1 else "",
            words,
        )


def _show(one: Told, whom: str, words: Any) -> None:
    answer = one.answer
    _print(answer.get("output"), whom, sys.stdout)
    said = words(answer) if words is not None and one.ok else answer.get("value")
    _print(said, whom, sys.stdout)
    if not one.ok:
        _print(answer.get("error") or "it failed", whom, sys.stderr)


def _print(text: Any, whom: str, stream: Any) -> None:
    """One line or several; with several ranks each line says whose it is."""
    if text:
        lines = str(text).removesuffix("\n").split("\n")
        print("\n".join(whom + line for line in lines), file=stream)


def change_words(answer: dict[str, Any]) -> str:
    """What was changed, from which step on, and how to undo it."""
    number, note = answer.get("number"), answer.get("note")
    more = [*([str(note)] if note else []), *([f"undo it with: holdfast undo {number}"] if number is not None else [])]
    return f"{answer.get('value')} from step {answer.get('step')} on" + (f"\n  {'; '.join(more)}" if more else "")
