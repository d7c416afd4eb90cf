"""Changes to a live training that the page and MCP can make: each equals a command, and the journal names who made it."""

from __future__ import annotations

import re
import shlex
from typing import Any

from holdfast.errors import UsageError
from holdfast.probe.changing import change
from holdfast.probe.serve.reply import Denied
from holdfast.signals.run_folder import RunFolder

_SECONDS = 30.0
_VERBS = ("set", "save", "rollback", "pause", "continue", "undo")
_TAKES = {"set": "text", "undo": "number", "rollback": "to"}  # what of a request goes with it
_CHECKPOINT = re.compile(r"[\w.-]{1,100}")  # a step, a name or `best`: no path


def command_of(run: str, body: dict[str, Any]) -> str:
    """The command that a change equals."""
    do = _verb(body)
    more = body.get(_TAKES.get(do, ""))
    arguments = [] if more is None else ["--to", more] if do == "rollback" else [more]
    return shlex.join(["holdfast", do, run, *map(str, arguments)])


def act(run: RunFolder, body: dict[str, Any], who: str) -> dict[str, Any]:
    """Make the change in every rank of the run; what each of them answered."""
    do = _verb(body)
    request = {"do": do, "who": who, **({_TAKES[do]: body.get(_TAKES[do])} if do in _TAKES else {})}
    answers = change(run, request, seconds=_SECONDS)
    rows = [{"rank": answer.recording.rank, "ok": answer.ok, **answer.answer} for answer in answers]
    return {"command": command_of(run.name, body), "ok": all(answer.ok for answer in answers), "answers": rows}


def check_allowed(allow_actions: bool) -> None:
    """Refuse where the server was started without --allow-actions."""
    if not allow_actions:
        raise Denied(
            403, "changes are switched off on this page.", fix="holdfast ui --allow-actions, or the command itself in a terminal"
        )


def _verb(body: dict[str, Any]) -> str:
    do = body.get("do")
    if do not in _VERBS:
        raise UsageError(f"unknown action {str(do)[:40]!r}.", fix=f"one of: {', '.join(_VERBS)}")
    if do == "set" and not (isinstance(body.get("text"), str) and "=" in body["text"] and len(body["text"]) < 200):
        raise UsageError("there is no setting to change.", fix="send a setting such as lr=1e-4")
    if do == "rollback" and body.get("to") is not None and not _CHECKPOINT.fullmatch(str(body["to"])):
        raise UsageError("that is no checkpoint of the run.", fix="name a step, a checkpoint of the list, or best")
    if do == "undo" and not isinstance(body.get("number"), int):
        raise UsageError("there is no number of a change.", fix="the journal has the number of each change")
    return str(do)
