"""What the verbs for a live training share: sending a request, showing the answers, and the exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.errors import ControlUnreachable

if TYPE_CHECKING:
    from holdfast.probe.changing import RankAnswer

Seconds = Annotated[
    float, typer.Option("--seconds", min=0.1, metavar="S", help="Time limit in seconds: for the next step, and for the request.")
]
Rank = Annotated[int | None, typer.Option("--rank", min=0, metavar="N", help="Only this rank.", show_default=False)]


def change_all(
    target: list[str] | None, request: dict[str, Any], *, everything: bool = False, seconds: float = 30.0, rank: int | None = None
) -> list[RankAnswer]:
    """Make a change in every rank of the named runs, here and on other machines, or only in one rank."""
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
    return [answer for job in jobs_in(crews) if ranks_in(job) for answer in change_ranks(ranks_in(job), request, seconds=seconds)]


def finish(answers: Sequence[RankAnswer], *, as_json: bool, sentence: Any = None) -> None:
    """Show each rank's answer; exit code 1 if one failed, 2 if none could be reached."""
    if all(answer.closed is not None for answer in answers):
        closed = next(answer.closed for answer in answers if answer.closed is not None)
        raise ControlUnreachable(closed.problem, fix=closed.fix)
    if as_json:
        _as_json(answers)
    else:
        _show_all(answers, sentence)
    if any(answer.answer.get("ran") is False for answer in answers):
        raise typer.Exit(2)
    if not all(answer.ok for answer in answers):
        raise typer.Exit(1)


def _as_json(answers: Sequence[RankAnswer]) -> None:
    from holdfast.probe.far_rank import whose

    rows = [{**whose(answer.recording), **answer.answer} for answer in answers]
    print(json.dumps(rows[0] if len(rows) == 1 else rows, ensure_ascii=False))


def _show_all(answers: Sequence[RankAnswer], sentence: Any) -> None:
    """Each rank in turn, or once if all answers are the same."""
    from holdfast.probe.far_rank import names_of

    first = answers[0].answer
    if len(answers) == 1:
        _show(answers[0], "", sentence)
    elif all({**answer.answer, "number": 0} == {**first, "number": 0} for answer in answers):
        _show(answers[0], f"{len(answers)} ranks: ", sentence)
    else:
        for of_rank, name in zip(answers, names_of([answer.recording for answer in answers]), strict=True):
            _show(of_rank, f"{name}: ", sentence)


def _show(of_rank: RankAnswer, whom: str, sentence: Any) -> None:
    answer = of_rank.answer
    _print(answer.get("output"), whom, sys.stdout)
    text = sentence(answer) if sentence is not None and of_rank.ok else answer.get("value")
    _print(text, whom, sys.stdout)
    if not of_rank.ok:
        _print(answer.get("error") or "it failed", whom, sys.stderr)


def _print(text: Any, whom: str, stream: Any) -> None:
    """One line or several; with several ranks each line says whose it is."""
    if text:
        lines = str(text).removesuffix("\n").split("\n")
        print("\n".join(whom + line for line in lines), file=stream)


def named_again(runs: Sequence[str], answers: Sequence[RankAnswer]) -> list[str]:
    """How a later command names the same runs: as they were named now, or the one that was meant without a name."""
    from holdfast.signals.run_folder import Recording, RunFolder

    folders = {answer.recording.path.parent for answer in answers if isinstance(answer.recording, Recording)}
    return list(runs) or [RunFolder(folder).target for folder in folders]


def change_words(answer: dict[str, Any], runs: Sequence[str] = ()) -> str:
    """What was changed, from which step on, and how to undo it in the runs that were named."""
    number, note = answer.get("number"), answer.get("note")
    undo = " ".join(["undo with: holdfast undo", *runs, str(number)])
    more = [*([str(note)] if note else []), *([undo] if number is not None else [])]
    return f"{answer.get('value')} from step {answer.get('step')} on" + (f"\n  {'; '.join(more)}" if more else "")
