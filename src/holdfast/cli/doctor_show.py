"""What `holdfast doctor` shows: a line for each check, and under a bad one its evidence and what would fix it."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from holdfast.cli.output import output
from holdfast.cli.show import WIDTH, size
from holdfast.environment.check import NOTE, OK, PROBLEM, SKIPPED, WARNING, Check, Verdict
from holdfast.environment.examine import Answer, examine
from holdfast.environment.machine import Machine
from holdfast.environment.report import count, failed_checks

_STYLES = {PROBLEM: "bold red", WARNING: "yellow", NOTE: "cyan", OK: "green", SKIPPED: "dim"}
_NAME, _LEVEL = 14, 8
_INDENT = _NAME + _LEVEL + 2
_BYTES = ("free", "used", "total", "size", "memory", "available", "limit", "peak", "needed", "batch", "left", "bytes")


def show_answers(machine: Machine, checks: Sequence[Check], *, more_checks: bool = False) -> list[Answer]:
    """Print each answer as it comes, then a line with the totals. `more_checks`: there are slower checks too."""
    console = _console()
    answers = []
    for answer in _waited_for(machine, checks, console):
        console.print(_line(answer, console.width))
        if answer.verdict.level in (PROBLEM, WARNING, NOTE):
            _print_below(console, answer.verdict)
        answers.append(answer)
    _sum_up(answers, more_checks=more_checks)
    return answers


def gathered(machine: Machine, checks: Sequence[Check]) -> list[Answer]:
    """All answers, with nothing printed but what is being waited for."""
    return list(_waited_for(machine, checks, Console(stderr=True, highlight=False)))


def commands(answers: Sequence[Answer]) -> None:
    """The commands that fix it on stdout, one per line; what each is for on stderr."""
    wrong = failed_checks(answers)
    for answer in wrong:
        print(f"# {answer.check.name}: {answer.verdict.message}", file=sys.stderr)
        for fix in answer.verdict.fixes:
            print(f"#   {fix.text}{':' if fix.commands else ''}", file=sys.stderr)
            sys.stderr.flush()
            for command in fix.commands:
                print(command, flush=True)
    if not wrong:
        print("nothing to fix", file=sys.stderr)


def _console() -> Console:
    return output(at_most=WIDTH)


def _waited_for(machine: Machine, checks: Sequence[Check], console: Console) -> Iterator[Answer]:
    """The answers; who looks at a terminal sees meanwhile what is still out."""
    if not console.is_terminal:
        yield from examine(machine, checks)
        return
    left = [check.asks for check in checks]
    with console.status(f"asking: {left[0]}", spinner="dots") as status:
        for answer in examine(machine, checks):
            yield answer
            left.pop(0)
            status.update(f"asking: {left[0]}" if left else "done")


def _line(answer: Answer, width: int) -> Text:
    """Level, name and sentence; what does not fit continues under the sentence."""
    level = answer.verdict.level
    dim = "dim" if level == SKIPPED else ""
    line = Text.assemble((f"{level:<{_LEVEL}} ", _STYLES[level]), (f"{answer.check.name:<{_NAME}} ", dim or "bold"))
    lines = textwrap.wrap(answer.verdict.message, max(20, width - _INDENT), break_on_hyphens=False) or [""]
    return line.append(f"\n{' ' * _INDENT}".join(lines), dim)


def _print_below(console: Console, verdict: Verdict) -> None:
    facts = {name: value for name, value in verdict.evidence.items() if value not in (None, "", [], {})}
    if facts and verdict.level != NOTE:
        text = " · ".join(f"{name} {_value(name, value)}" for name, value in facts.items())
        console.print(Text(_folded(text, console.width), "dim"))
    for fix in verdict.fixes:
        console.print(Text(_folded(f"fix: {fix.text}{':' if fix.commands else ''}", console.width)))
        for command in fix.commands:  # never folded: it is there to be copied
            console.print(Text(f"{' ' * (_INDENT + 2)}{command}", "cyan"), soft_wrap=True)


def _folded(text: str, width: int) -> str:
    indent = " " * _INDENT
    return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _value(name: str, value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(_value(name, item) for item in value)
    if isinstance(value, dict):
        return " ".join(f"{key} {_value(key, item)}" for key, item in value.items() if item is not None)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and abs(value) >= 1 << 20 and any(word in name for word in _BYTES):
        return size(value)
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value)


def _sum_up(answers: Sequence[Answer], *, more_checks: bool) -> None:
    counts = {"problem": count(answers, PROBLEM), "warning": count(answers, WARNING)}
    parts = [f"{number} {word}{'' if number == 1 else 's'}" for word, number in counts.items() if number]
    more = "; `holdfast doctor --fix` prints the fixes, --report a text to paste" if parts else ""
    more += "; `holdfast doctor --full` also checks torch.compile and all-reduce" if more_checks else ""
    sys.stdout.flush()
    print(f"\n{' and '.join(parts) or 'nothing is wrong'}{more}", file=sys.stderr)
