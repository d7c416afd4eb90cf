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
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CODE|TEXT|FILE", help="A code, an error message in quotes, or a log file; - reads stdin.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain a failure code, an error message or a log, with fixes.

    A log can also be piped in. Without an argument: all codes. Exit code 2: nothing known was found.
    """
    from holdfast.cli import explain_show as show

    text = " ".join(arguments or ())
    if not text and sys.stdin.isatty():
        show.codes(as_json=as_json)
    elif (code := _code(text)) is not None:
        show.page(code, as_json=as_json)
    elif (cause := _cause(text)) is not None:
        show.cause(cause, as_json=as_json)
    elif (topic := _topic(text)) is not None:
        show.topic(topic, as_json=as_json)
    else:
        _tell(*_searched(text), as_json=as_json)


def _code(text: str) -> str | None:
    from holdfast.diagnosis.failures import CODES

    code = "-".join(text.lower().replace("_", " ").split())
    return code if code in CODES else None


def _cause(text: str) -> str | None:
    from holdfast.diagnosis.causes import BY_CODE

    code = "-".join(text.lower().replace("_", " ").split())
    return code if code in BY_CODE else None


def _topic(text: str) -> str | None:
    from holdfast.diagnosis.topics import TOPICS

    name = "-".join(text.lower().replace("_", " ").split())
    return name if name in TOPICS else None


def _searched(text: str) -> tuple[Answer, str | None]:
    """What is known in a file, in stdin or in the text itself; and the file's name."""
    from holdfast.diagnosis.error_search import search_file, search_text

    if text in ("", "-"):
        return search_file(sys.stdin.buffer), None
    path = _file(text)
    if path is not None:
        try:
            with path.open("rb") as file:
                return search_file(file), str(path)
        except OSError as error:
            raise LogUnreadable(f"{path} cannot be read: {error.strerror}.", fix="name a log that you may read") from error
    answer = search_text(text)
    if not answer.matches:
        _refuse_mistyped(text)
    return answer, None


def _file(text: str) -> Path | None:
    """The file that is meant; of a run folder, what its command printed."""
    if len(text) > _LONGEST_PATH or "\n" in text:
        return None
    try:
        path = Path(text).expanduser()
        if not path.is_dir():
            return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # what no path can be
        return None
    log = path / "train.log"
    if not log.is_file():
        raise LogUnreadable(f"{path} is a folder without a train.log.", fix="name the log itself, or a run folder")
    return log


def _refuse_mistyped(text: str) -> None:
    """A word that is no known text was meant as a code or as a file."""
    from holdfast.diagnosis.causes import BY_CODE
    from holdfast.diagnosis.failures import CODES, pages_about
    from holdfast.diagnosis.topics import TOPICS

    if _LIKE_A_FILE.fullmatch(text):
        raise LogUnreadable(f"There is no file {text}.", fix="name a log, or put the error text in quotes")
    if _LIKE_A_CODE.fullmatch(text):
        near = difflib.get_close_matches(text, [*CODES, *BY_CODE, *TOPICS], n=3, cutoff=0.7) or pages_about(text)[:3]
        fix = f"holdfast explain {near[0]}" if near else "`holdfast explain` alone lists all codes"
        others = f" (or {', '.join(near[1:])})" if near[1:] else ""
        raise UsageError(f"There is no failure code {text!r}, and no known error text has it.", fix=f"{fix}{others}")


def _tell(answer: Answer, name: str | None, *, as_json: bool) -> None:
    from holdfast.cli import explain_show as show

    if as_json:
        print(json.dumps(_as_rows(answer), ensure_ascii=False))
    elif answer.matches:
        show.answer(answer, name)
    else:
        unknown = f" It ends with: {answer.unknown[0]}" if answer.unknown else ""
        lines = f"{answer.lines:,} lines" if answer.lines > 1 else "it"
        raise UsageError(
            f"No known error text in {lines}.{unknown}",
            fix="read the last lines of the first traceback; `holdfast diagnose` looks at the curves of a log instead",
        )
    sys.stdout.flush()
    raise typer.Exit(0 if answer.matches else 2)


def _as_rows(answer: Answer) -> dict[str, Any]:
    from holdfast.diagnosis.known_texts import KINDS
    from holdfast.diagnosis.oom_message import hint_from_amounts

    matches = [
        {
            "text": match.text.name,
            "kind": KINDS[match.text.kind],
            "code": match.text.page,
            "line": match.number,
            "times": match.times,
            "matched": match.line,
            "meaning": match.text.means,
            "note": hint_from_amounts(match.line),
            "fix": match.text.fix,
        }
        for match in answer.matches
    ]
    unknown = {"line": answer.unknown[1], "matched": answer.unknown[0]} if answer.unknown else None
    return {"matches": matches, "unknown_error": unknown, "lines": answer.lines}
