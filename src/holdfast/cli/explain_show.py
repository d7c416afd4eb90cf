"""What `holdfast explain` shows in a terminal: pages, causes, what was found in a log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.output import output
from holdfast.cli.show import WIDTH
from holdfast.diagnosis.causes import BY_CODE, Cause
from holdfast.diagnosis.error_search import Answer, Match, unknown_comes_first
from holdfast.diagnosis.failures import GROUPS, causes_of, fixes_in_words
from holdfast.diagnosis.failures import page as page_of
from holdfast.diagnosis.failures import words as words_of
from holdfast.diagnosis.known_texts import FOLLOWS
from holdfast.diagnosis.oom_message import hint_from_amounts
from holdfast.diagnosis.topics import TOPICS, topic_page

if TYPE_CHECKING:
    from rich.style import Style

_NUM_SHOWN = 3
_SHOWN = 400  # characters of the line that was found


class _PlainHeading(Heading):
    """A heading at the left edge, not in a box."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        self.text.stylize("bold cyan" if self.tag == "h1" else "bold")
        yield self.text


class _PlainCode(CodeBlock):
    """Text as it was printed, indented; Rich would colour it as a program."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Padding(Text(str(self.text).rstrip(), "red"), (0, 0, 0, 4))


class _Page(Markdown):
    """Markdown for a terminal."""

    elements: ClassVar = {**Markdown.elements, "heading_open": _PlainHeading, "fence": _PlainCode, "code_block": _PlainCode}


def _console() -> Console:
    return output(at_most=WIDTH, theme=_theme())


def _theme() -> Any:
    from rich.theme import Theme

    code: str | Style = "cyan"
    return Theme({"markdown.code": code, "markdown.item.bullet": "dim"})


def codes(*, as_json: bool) -> None:
    """All codes, by group, a line for each."""
    if as_json:
        pages = [(group, page_of(code)) for group, several in GROUPS.items() for code in several]
        rows = [
            {"code": failure.code, "title": failure.title, "severity": failure.severity, "group": group}
            for group, failure in pages
        ]
        print(json.dumps(rows, ensure_ascii=False))
        return
    console = _console()
    for group, several in GROUPS.items():
        console.print(Text(group, "bold"))
        for code in several:
            console.print(Text.assemble(f"  {code:<26}", (page_of(code).title, "dim")))
    console.print(Text("Questions", "bold"))
    for name, asks in TOPICS.items():
        console.print(Text.assemble(f"  {name:<26}", (asks, "dim")))
    console.print("\nholdfast explain CODE shows the page.", style="dim")


def page(code: str, *, as_json: bool) -> None:
    """The page of a failure."""
    whole = page_of(code)
    if as_json:
        causes = [_cause_row(entry) for entry in causes_of(code)]
        row = {"code": code, "title": whole.title, "severity": whole.severity, "page": whole.text}
        print(json.dumps({**row, "causes": causes}, ensure_ascii=False))
        return
    _console().print(_Page(whole.text))


def cause(code: str, *, as_json: bool) -> None:
    """A cause: why, what helps, and the failures that it explains."""
    entry = BY_CODE[code]
    if as_json:
        print(json.dumps(_cause_row(entry), ensure_ascii=False))
        return
    seen = ", ".join(f"`{failure}`" for failure in entry.seen_by)
    more = f"A cause of {seen}: `holdfast explain {entry.seen_by[0]}`."
    text = f"# {code}\n\n{entry.because}\n\n**Fix:** {fixes_in_words(entry.fixes)}.\n\n{more}"
    _console().print(_Page(text))


def topic(name: str, *, as_json: bool) -> None:
    """The page on a question."""
    text = topic_page(name)
    if as_json:
        print(json.dumps({"topic": name, "title": TOPICS[name], "page": text}, ensure_ascii=False))
        return
    _console().print(_Page(text))


def _cause_row(entry: Cause) -> dict[str, Any]:
    fixes = [{"text": fix.text, "setting": fix.setting, "op": fix.op, "value": fix.value} for fix in entry.fixes]
    return {"cause": entry.code, "because": entry.because, "findings": list(entry.seen_by), "fixes": fixes}


def answer(explanation: Answer, name: str | None) -> None:
    """What was found in a log, the most important first."""
    console = _console()
    if unknown_comes_first(explanation) and explanation.unknown is not None:
        console.print(
            Text.assemble(("an unknown error", "bold"), f", {_place(explanation.unknown[1], explanation.lines, name)}:")
        )
        console.print(Padding(Text(_short(explanation.unknown[0]), "red"), (0, 0, 0, 4)))
        console.print("\nknown errors that may help:\n")
    shown = explanation.matches[:_NUM_SHOWN]
    for place, match in enumerate(shown):
        if place:
            console.print()
        _match(console, match, explanation.lines, name, follows=place > 0 and match.text.kind == FOLLOWS)
    left = len(explanation.matches) - len(shown)
    if left:
        console.print(f"\nand {left} more: --json", style="dim")
    if explanation.unknown is not None and not unknown_comes_first(explanation):
        console.print(Text(f"\nit ends with an unknown error: {_short(explanation.unknown[0])}", "dim"))


def _match(console: Console, match: Match, lines: int, name: str | None, *, follows: bool) -> None:
    style = "bold red" if match.text.kind >= FOLLOWS else "bold yellow"
    head = Text.assemble((words_of(match.text.page), style), (f" [{match.text.page}]", "dim"))
    times = f", {match.times:,} times" if match.times > 1 else ""
    if lines > 1 or name:
        head.append(f"   {_place(match.number, lines, name)}{times}{', may well follow from it' if follows else ''}", "dim")
    console.print(head)
    console.print(Padding(Text(_short(match.line), "red"), (0, 0, 0, 4)))
    parts = [("", match.text.means), ("", hint_from_amounts(match.line) or ""), ("fix: ", match.text.fix)]
    for label, text in parts:
        if text:
            console.print(Padding(Text.assemble((label, "bold"), _with_code(text)), (0, 0, 0, 2)))
    console.print(Padding(Text(f"more: holdfast explain {match.text.page}", "dim"), (0, 0, 0, 2)))


def _with_code(plain: str) -> Text:
    """Plain text; what is between backticks has the colour of code."""
    text = Text()
    for place, part in enumerate(plain.split("`")):
        text.append(part, "cyan" if place % 2 else "")
    return text


def _place(number: int, lines: int, name: str | None) -> str:
    return f"{f'{name}, ' if name else ''}line {number:,} of {lines:,}"


def _short(line: str) -> str:
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]} …"
