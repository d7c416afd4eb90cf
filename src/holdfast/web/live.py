"""Server-sent events: the newest values of one run, or the list of all runs, as they come."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio.to_thread
from starlette.responses import StreamingResponse

from holdfast.probe.remote import Remote
from holdfast.probe.values import for_json
from holdfast.web.runs import Runs, marks

_LOOK_SECONDS = 0.5
_LIST_SECONDS = 1.0
_SILENT_SECONDS = 15.0
_LONGEST_SECONDS = 240.0  # then the browser comes again: no answer lasts for ever


def stream(look: Callable[[dict[str, Any]], dict[str, Any] | None], pause: float, longest: float) -> StreamingResponse:
    """Send what `look` finds, whenever it finds something new. It gets a dictionary to remember what it has sent."""

    async def events() -> AsyncIterator[bytes]:
        sent: dict[str, Any] = {}
        begun = spoke = time.monotonic()
        yield b"retry: 1000\n\n"
        while time.monotonic() - begun < longest:
            news = await anyio.to_thread.run_sync(look, sent)
            if news is not None:
                yield b"data: " + json.dumps(news, ensure_ascii=False).encode() + b"\n\n"
                spoke = time.monotonic()
            elif time.monotonic() - spoke > _SILENT_SECONDS:
                yield b": still here\n\n"
                spoke = time.monotonic()
            await asyncio.sleep(pause)

    return StreamingResponse(events(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def of_all(runs: Runs, answer_seconds: float) -> StreamingResponse:
    """The list of runs, whenever a row of it changes."""

    def look(sent: dict[str, Any]) -> dict[str, Any] | None:
        rows, problems = for_json(runs.rows())  # of two NaN nobody can tell that they are the same
        fresh = {row["id"]: {name: value for name, value in row.items() if name != "age"} for row in rows}
        if fresh == sent.get("rows") and problems == sent.get("problems"):
            return None
        sent |= {"rows": fresh, "problems": problems}
        return {"runs": rows, "problems": problems}

    return stream(look, _LIST_SECONDS, min(_LONGEST_SECONDS, 0.8 * answer_seconds))


def news_of(runs: Runs, known_as: str, along: str, after: int, num_marks: int) -> dict[str, Any]:
    """The state of a run, its rows after the first `after`, and its marks after the first `num_marks`."""
    watched = runs.find(known_as)
    row, curves = watched.row(known_as), runs.curves(watched)
    if after < 0:
        after = curves.columns.rows
    events = marks(watched.look().events)
    evaluations = {name: len(entries) for name, entries in curves.evaluations.items()}
    return {"row": row, "points": curves.since(after, along), "marks": events[num_marks:], "evaluations": evaluations}


def of_one(runs: Runs, known_as: str, along: str, answer_seconds: float, after: int, num_marks: int) -> StreamingResponse:
    """One run. A run of another server is asked there, once a second."""
    far = runs.far(known_as)

    def look(sent: dict[str, Any]) -> dict[str, Any] | None:
        rows, seen = sent.get("rows", after), sent.get("marks", num_marks)
        news = for_json(_ask(*far, along, rows, seen) if far is not None else news_of(runs, known_as, along, rows, seen))
        row = {name: value for name, value in news["row"].items() if name != "age"}
        counts = news["evaluations"]
        is_new = news["points"]["curves"] or news["marks"] or row != sent.get("row") or counts != sent.get("evaluations")
        sent |= {"rows": news["points"]["rows"], "marks": seen + len(news["marks"]), "row": row, "evaluations": counts}
        return news if is_new else None

    return stream(look, _LOOK_SECONDS if far is None else _LIST_SECONDS, min(_LONGEST_SECONDS, 0.8 * answer_seconds))


def _ask(remote: Remote, name: str, along: str, rows: int, seen: int) -> dict[str, Any]:
    answer: dict[str, Any] = remote.get("/api/news", run=name, along=along, after=str(rows), marks=str(seen))
    return answer
