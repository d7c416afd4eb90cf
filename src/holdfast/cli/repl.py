"""`holdfast repl`: talk to a live training line by line."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.live_requests import Rank, Seconds
from holdfast.cli.options import RunName, Target, one_of
from holdfast.errors import ControlUnreachable

if TYPE_CHECKING:
    from holdfast.signals.run_folder import Recording

_HELLO = "Each line runs between two steps{now}. `exit` or Ctrl-D leaves; the training continues."


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("repl")(repl)


def repl(
    name: RunName = None,
    target: Target = None,
    now: Annotated[bool, typer.Option("--now", help="Run every line at once, in a side thread.")] = False,
    seconds: Seconds = 30.0,
    rank: Rank = None,
) -> None:
    """Interactive `eval` in a live training, with history and tab completion."""
    from holdfast.probe.changing import ranks_to_ask
    from holdfast.probe.target import resolve

    run = resolve(one_of(name, target), live=True)
    recording = ranks_to_ask(run, rank)[0]
    history = _prepare(recording) if sys.stdin.isatty() else None
    print(f"{run.name}, rank {recording.rank}. {_HELLO.format(now=' (--now: at once)' if now else '')}", file=sys.stderr)
    try:
        _talk(recording, now=now, seconds=seconds)
    finally:
        if history is not None:
            _keep(history)


def _talk(recording: Recording, *, now: bool, seconds: float) -> None:
    from holdfast.cli.live_requests import finish
    from holdfast.probe.changing import evaluate

    while (code := _read()) is not None:
        if code.strip():
            try:
                finish(evaluate([recording], code, now=now, seconds=seconds), as_json=False)
            except typer.Exit:
                continue
            except KeyboardInterrupt:
                print("withdrawn", file=sys.stderr)


def _read() -> str | None:
    """A line, or a block that ends with an empty line; None at the end."""
    import codeop

    lines: list[str] = []
    interactive = sys.stdin.isatty()
    while True:
        try:
            lines.append(input(("... " if lines else ">>> ") if interactive else ""))
        except EOFError:
            return "\n".join(lines) if lines else None
        except KeyboardInterrupt:
            print(file=sys.stderr)
            lines.clear()
            continue
        text = "\n".join(lines)
        if text.strip() in ("exit", "quit", "exit()", "quit()"):
            return None
        try:
            if codeop.compile_command(text, "<eval>", "single") is not None or not text.strip():
                return text
        except (SyntaxError, ValueError, OverflowError):
            return text  # the training says what is wrong with it


def _prepare(recording: Recording) -> Path | None:
    """History in the user's runtime folder, and completion; a Python without readline goes without."""
    try:
        import readline
    except ImportError:
        return None
    from holdfast.probe.control_client import ask
    from holdfast.signals.registry import runtime_folder

    matches: list[str] = []

    def complete(text: str, state: int) -> str | None:
        if state == 0:
            try:
                matches[:] = ask(recording, {"do": "complete", "text": text}, seconds=2.0).get("names") or []
            except ControlUnreachable:
                matches.clear()
        return matches[state] if state < len(matches) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n`~!@#$%^&*()-=+[{]}\\|;:'\",<>/?")
    readline.parse_and_bind("tab: complete")
    path = runtime_folder() / "repl_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    return path


def _keep(history: Path) -> None:
    readline: Any = sys.modules["readline"]
    readline.set_history_length(1000)
    with contextlib.suppress(OSError):
        readline.write_history_file(history)
        history.chmod(0o600)
