"""`holdfast explain`: a failure code, an error text that was pasted, or a log, in plain words."""

from __future__ import annotations

import difflib
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.options import AsJson
from holdfast.errors import LogUnreadable, UsageError

if TYPE_CHECKING:
    from holdfast.diagnosis.error_search import Answer

_LIKE_A_CODE = re.compile(r"[a-z]+(?:-[a-z]+)*")
_LIKE_A_FILE = re.compile(r"\S*(?:/\S+|\.(?:log|txt|out|err))")
_LONGEST_PATH = 4096


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("explain")(explain)


def explain(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CODE|TEXT|FILE", help="A code, an error text in quotes, or a log; - reads stdin.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a failure code, an error text or a log means, and what helps.

    A log can also come through a pipe. Without anything: all codes. Exit 2: nothing known was found.
    """
    from holdfast.cli import explain_show as show

    given = " ".join(what or ())
    if not given and sys.stdin.isatty():
        show.codes(as_json=as_json)
    elif (code := _code(given)) is not None:
        show.page(code, as_json=as_json)
    elif (cause := _cause(given)) is not None:
        show.cause(cause, as_json=as_json)
    elif (topic := _topic(given)) is not None:
        show.topic(topic, as_json=as_json)
    else:
        _tell(*_searched(given), as_json=as_json)


def _code(given: str) -> str | None:
    from holdfast.diagnosis.failures import CODES

    code = "-".join(given.lower().replace("_", " ").split())
    return code if code in CODES else None


def _cause(given: str) -> str | None:
    from holdfast.diagnosis.causes import BY_CODE

    code = "-".join(given.lower().replace("_", " ").split())
    return code if code in BY_CODE else None


def _topic(given: str) -> str | None:
    from holdfast.diagnosis.topics import TOPICS

    name = "-".join(given.lower().replace("_", " ").split())
    return name if name in TOPICS else None


def _searched(given: str) -> tuple[Answer, str | None]:
    """What is known in a file, in stdin or in the text itself; and the file's name."""
    from holdfast.diagnosis.error_search import search_file, search_text

    if given in ("", "-"):
        return search_file(sys.stdin.buffer), None
    path = _file(given)
    if path is not None:
        try:
            with path.open("rb") as file:
                return search_file(file), str(path)
        except OSError as error:
            raise LogUnreadable(f"{path} cannot be read: {error.strerror}.", fix="name a log that you may read") from error
    answer = search_text(given)
    if not answer.found:
        _refuse_mistyped(given)
    return answer, None


def _file(given: str) -> Path | None:
    """The file that is meant; of a run folder, what its command printed."""
    if len(given) > _LONGEST_PATH or "\n" in given:
        return None
    try:
        path = Path(given).expanduser()
        if not path.is_dir():
            return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # what no path can be
        return None
    log = path / "train.log"
    if not log.is_file():
        raise LogUnreadable(f"{path} is a folder without a train.log.", fix="name the log itself, or a run folder")
    return log


def _refuse_mistyped(given: str) -> None:
    """A word that is no known text was meant as a code or as a file."""
    from holdfast.diagnosis.causes import BY_CODE
    from holdfast.diagnosis.failures import CODES
    from holdfast.diagnosis.topics import TOPICS

    if _LIKE_A_FILE.fullmatch(given):
        raise LogUnreadable(f"There is no file {given}.", fix="name a log, or put the error text in quotes")
    if _LIKE_A_CODE.fullmatch(given):
        near = difflib.get_close_matches(given, [*CODES, *BY_CODE, *TOPICS], n=3, cutoff=0.5)
        fix = f"holdfast explain {near[0]}" if near else "`holdfast explain` alone lists all codes"
        others = f" (or {', '.join(near[1:])})" if near[1:] else ""
        raise UsageError(f"There is no failure code {given!r}, and no known error text has it.", fix=f"{fix}{others}")


def _tell(answer: Answer, name: str | None, *, as_json: bool) -> None:
    from holdfast.cli import explain_show as show

    if as_json:
        print(json.dumps(_as_rows(answer), ensure_ascii=False))
    elif answer.found:
        show.answer(answer, name)
    else:
        unknown = f" It ends with: {answer.unknown[0]}" if answer.unknown else ""
        lines = f"{answer.lines:,} lines" if answer.lines > 1 else "it"
        raise UsageError(
            f"No known error text in {lines}.{unknown}",
            fix="read the last lines of the first traceback; `holdfast diagnose` looks at the curves of a log instead",
        )
    sys.stdout.flush()
    raise typer.Exit(0 if answer.found else 2)


def _as_rows(answer: Answer) -> dict[str, Any]:
    from holdfast.diagnosis.known_texts import KINDS
    from holdfast.diagnosis.memory_numbers import what_memory_says

    matches = [
        {
            "text": found.text.name,
            "kind": KINDS[found.text.kind],
            "code": found.text.page,
            "line": found.number,
            "times": found.times,
            "matched": found.line,
            "meaning": found.text.means,
            "note": what_memory_says(found.line),
            "fix": found.text.fix,
        }
        for found in answer.found
    ]
    unknown = {"line": answer.unknown[1], "matched": answer.unknown[0]} if answer.unknown else None
    return {"matches": matches, "unknown_error": unknown, "lines": answer.lines}
