"""Ask several ranks for the same, between the same two steps: what changes one rank must change all of them at once.

Everyone is told the step, a while ahead. Before it comes, each is asked whether the request has arrived; if it has not, it is
withdrawn everywhere and tried once more, further ahead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from holdfast.errors import ControlUnreachable, NoSuchRun
from holdfast.probe.control_client import ask, listening
from holdfast.probe.far_rank import Rank, ask_group, common_number, grouped_by_server
from holdfast.signals.run_folder import Recording, RunFolder

Request = dict[str, Any]
_AHEAD_SECONDS, _AHEAD_STEPS = 1.5, 2
_AT_ONCE = 64
_SPARE = 10.0  # seconds that an answer may take longer than what was asked for


class RankAnswer(NamedTuple):
    """What one rank answered, or why it could not be asked."""

    recording: Rank
    answer: dict[str, Any]
    closed: ControlUnreachable | None = None

    @property
    def ok(self) -> bool:
        """Whether it was done."""
        return bool(self.answer.get("ok"))


def ranks_to_ask(run: RunFolder, rank: int | None = None) -> list[Recording]:
    """The ranks that can be asked, or the one that is named. Raises NoSuchRun or ControlUnreachable, in words."""
    ranks = listening(run)
    if rank is not None:
        chosen = [recording for recording in ranks if recording.rank == rank]
        if not chosen:
            there = ", ".join(str(recording.rank) for recording in ranks)
            raise NoSuchRun(
                f"rank {rank} of {run.name} cannot be asked{f'; these can: {there}' if there else ''}.", fix="holdfast ps"
            )
        return chosen
    if ranks:
        return ranks
    recordings = run.recordings()
    if not recordings and run.info().get("ended"):
        fix = f"holdfast diagnose {run.target} shows why; `holdfast ps` lists the live runs"
        raise ControlUnreachable(f"{run.name} ended before its first step.", fix=fix)
    if not recordings:
        fix = f"holdfast backtrace {run.target} shows what it is doing"
        raise ControlUnreachable(f"{run.name} has not made a step yet.", fix=fix)
    ask(recordings[-1], {"do": "where"}, seconds=2.0)  # says what is wrong
    raise ControlUnreachable(f"no rank of {run.name} answers.", fix="holdfast ps")


def evaluate(recordings: Sequence[Rank], code: str, *, now: bool, seconds: float) -> list[RankAnswer]:
    """Run code in each of these ranks."""
    request = {"do": "eval", "code": code, "now": now, "seconds": seconds}
    return _ask_each(recordings, request, 2 * seconds + _SPARE)


def change(run: RunFolder, request: Request, *, seconds: float = 30.0, rank: int | None = None) -> list[RankAnswer]:
    """Have a change made in every rank between the same two steps, or in the one that is named."""
    recordings = ranks_to_ask(run, rank)
    if rank is None:
        _refuse_part_of(run, recordings)
    return change_ranks(recordings, request, seconds=seconds)


def change_ranks(recordings: Sequence[Rank], request: Request, *, seconds: float = 30.0) -> list[RankAnswer]:
    """Have a change made in each of these ranks between the same two steps, wherever they are."""
    request = {"seconds": seconds, **request}
    if len(recordings) == 1 or request["do"] == "continue":
        if len(recordings) > 1:
            request = _numbered(recordings, request)
        return _ask_each(recordings, request, 2 * seconds + _SPARE)
    answers = _together(recordings, request, _AHEAD_SECONDS)
    if any(answer.answer.get("late") or answer.answer.get("withdrawn") for answer in answers) and not any(
        answer.ok for answer in answers
    ):
        answers = _together(recordings, request, 4 * _AHEAD_SECONDS)
    return answers


def _together(recordings: Sequence[Rank], request: Request, ahead: float) -> list[RankAnswer]:
    request = _numbered(recordings, request)
    number = request.get("as", request.get("number"))
    states = _ask_each(recordings, {"do": "where"}, 5.0)
    if closed := [state.closed for state in states if state.closed is not None]:
        raise closed[0]
    request["at"], wait = _step_ahead([state.answer for state in states], ahead)
    request["seconds"] = max(float(request["seconds"]), wait)
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(_ask_each, recordings, request, 2 * float(request["seconds"]) + _SPARE)
        time.sleep(min(0.3, ahead / 4))
        if not answers.done() and not _has_arrived(recordings, number, request["at"]):
            _ask_each(recordings, {"do": "withdraw", "number": number}, 5.0)
        return answers.result()


def _numbered(recordings: Sequence[Rank], request: Request) -> Request:
    """One number for all ranks. That of an undo is not the one that it undoes."""
    return {**request, "as" if request["do"] in ("undo",) else "number": common_number(recordings)}


def _step_ahead(states: list[dict[str, Any]], seconds: float) -> tuple[int, float]:
    """The step at which all of them can do it: some way ahead, or where they all stand; and how long that may take."""
    steps = [int(state.get("step") or 0) for state in states]
    if all(state.get("paused") for state in states) and len(set(steps)) == 1:
        return steps[0], 0.0
    each = max((float(state.get("step_seconds") or 0.0) for state in states), default=0.0)
    ahead = max(_AHEAD_STEPS, math.ceil(seconds / each) if each > 0 else _AHEAD_STEPS)
    return max(steps) + ahead, 2.0 * each * (ahead + max(steps) - min(steps) + 1)


def _has_arrived(recordings: Sequence[Rank], number: Any, at: int) -> bool:
    """Whether every rank has the request before it, or is past it already."""
    states = [reply.answer for reply in _ask_each(recordings, {"do": "where"}, 5.0)]
    return all(number in (state.get("waiting") or ()) or int(state.get("step") or 0) >= at for state in states)


def _ask_each(recordings: Sequence[Rank], request: Request, seconds: float) -> list[RankAnswer]:
    def work(group: list[Rank]) -> list[RankAnswer]:
        answers = ask_group(group, request, seconds=seconds)
        return [_as_answer(recording, answer) for recording, answer in zip(group, answers, strict=True)]

    groups = grouped_by_server(recordings)
    if len(groups) == 1:
        return work(groups[0])
    with ThreadPoolExecutor(min(_AT_ONCE, len(groups))) as pool:
        by_recording = {reply.recording: reply for part in pool.map(work, groups) for reply in part}
    return [by_recording[recording] for recording in recordings]


def _as_answer(recording: Rank, answer: dict[str, Any] | ControlUnreachable) -> RankAnswer:
    if isinstance(answer, ControlUnreachable):
        return RankAnswer(recording, {"ok": False, "error": answer.problem}, answer)
    return RankAnswer(recording, answer)


def _refuse_part_of(run: RunFolder, recordings: list[Recording]) -> None:
    """A change to some of the ranks makes them differ for ever."""
    size = run.info().get("world_size")
    ranks = {recording.rank for recording in run.recordings()}
    missing = sorted(ranks - {recording.rank for recording in recordings})
    elsewhere = [rank for rank in missing if _lives_elsewhere(run, rank)]
    if elsewhere or (isinstance(size, int) and size > max(len(ranks), len(recordings))):
        raise ControlUnreachable(
            f"rank {elsewhere[0] if elsewhere else len(ranks)} cannot be asked from here, and a change must reach all of them.",
            fix="name every machine: -t node1:8080 -t node2:8080; or one rank, on purpose: --rank 0",
        )


def _lives_elsewhere(run: RunFolder, rank: int) -> bool:
    from holdfast.probe.alive import lives

    infos = [recording.info() for recording in run.recordings() if recording.rank == rank]
    return any(lives(info) is None for info in infos[-1:])
