"""How stacks look in a terminal: the user's own lines bright, libraries folded, the sentence at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import groupby

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.show import duration
from holdfast.probe.stacks.frames import Frame, ProcessStacks, Thread
from holdfast.probe.stacks.group import Group, group
from holdfast.probe.stacks.report import Report
from holdfast.probe.stacks.whereabouts import doing, is_library, is_ours, own_part, package_of, short_file, source_line

_FUNC, _LONGEST_LOCAL = 34, 60
_FOLDED_FROM = 3
_STYLES = {"moving": "green", "running": "cyan", "busy": "cyan", "waiting": "cyan", "paused": "yellow", "unseen": "yellow"}


def stack_screen(report: Report, *, all_threads: bool = False, locals_: bool = False) -> RenderableType:
    """Everything: where each process is, what moved since the last time, and the sentence."""
    parts: list[RenderableType] = [_head(report), Text()]
    shown: set[str] = set()
    for alike in group(report.stacks, all_threads=all_threads):
        parts += [*_group_lines(alike, shown, everything=all_threads, locals_=locals_), Text()]
    if report.changes and report.before is not None:
        parts += [_changes(report), Text()]
    parts.append(Text(report.verdict.say, style=f"bold {_STYLES.get(report.verdict.code, 'red')}"))
    return Lines(*parts)


def _head(report: Report) -> Text:
    clock = time.strftime("%H:%M:%S", time.localtime(report.when))
    count = len(report.stacks)
    took = f" in {report.seconds:.1f} s" if report.seconds else ""
    over = f", saved {duration(time.time() - report.when)} ago: the run is over" if report.over else took
    return Text.assemble(
        (report.name, "bold"), (f" · {count} process{'es' if count != 1 else ''} · stacks of {clock}{over}", "dim")
    )


def _group_lines(alike: Group, shown: set[str], *, everything: bool, locals_: bool) -> Iterator[RenderableType]:
    yield _title(alike)
    first = alike.first
    if first.problem is not None and first.state != "gone":
        why = "as above" if first.problem in shown else first.problem
        shown.add(first.problem)
        how = "stacks by faulthandler:" if first.threads else "no stacks"
        yield _under(Text(f"{why}; {how}", style="yellow"))
    for thread in alike.shown:
        if len(alike.shown) > 1 or not thread.is_main:
            yield _under(_thread_title(thread))
        yield from (_under(line, 4) for line in frame_lines(thread, everything=everything, locals_=locals_))
    if alike.idle:
        yield _under(_idle(alike.idle), 4)


def _title(alike: Group) -> Text:
    first = alike.first
    pids = f"process {first.pid}" if len(alike.members) == 1 else f"process {first.pid} shown"
    line = Text(alike.title, style="bold", no_wrap=True, overflow="ellipsis")
    line.append("" if alike.title == pids else f" · {pids}", "not bold dim")
    line.append(f" on {first.host}" if first.host else "", "not bold dim")
    line.append(f" · {_state(first)}", "not bold red" if first.state in ("stopped", "gone") else "not bold dim")
    if not first.role.startswith("rank") and first.worker is None and first.command:
        command = first.command if len(first.command) <= 50 else first.command[:49] + "…"
        line.append(f" · {command}", "not bold dim")
    return line


def _state(stacks: ProcessStacks) -> str:
    if stacks.state == "stopped":
        return "stopped (SIGSTOP)"
    if stacks.state == "gone":
        return stacks.problem or "ended"
    main = stacks.main
    if main is None:
        return stacks.state or "–"
    state = doing(main) or ("runs" if main.active else "waits")
    return f"{state}, holds the interpreter lock" if main.holds_gil else state


def _thread_title(thread: Thread) -> Text:
    name = thread.name or f"thread {thread.thread}"
    line = Text.assemble((name, "italic"), (f" · {'runs' if thread.active else 'waits'}", "dim"))
    return line.append(" · holds the interpreter lock", "magenta") if thread.holds_gil else line


def _idle(idle: tuple[Thread, ...]) -> Text:
    names = sorted({thread.name for thread in idle if thread.name})
    shown = ": " + ", ".join(names[:4]) + (", …" if len(names) > 4 else "") if names else ""
    return Text(f"+ {len(idle)} idle thread{'s' if len(idle) != 1 else ''}{shown}", style="dim")


def frame_lines(thread: Thread, *, everything: bool = False, locals_: bool = False) -> Iterator[Text]:
    """The frames of a thread, innermost first; stretches of library code are folded to their two ends."""
    own = set(map(id, own_part(thread)))
    frames = [f for f in thread.frames if everything or f.native or (id(f) in own and not is_ours(f))] or list(thread.frames)
    bright = next((f for f in frames if not is_library(f)), None)
    for library, stretch in groupby(_up_to_the_script(frames, everything), key=is_library):
        those = list(stretch)
        if library and not everything and len(those) >= _FOLDED_FROM:
            yield from _folded(those)
            continue
        for frame in those:
            yield _frame_line(frame)
            if frame is bright and (text := source_line(frame)):
                yield Text(f"  → {text}", style="bold cyan", no_wrap=True, overflow="ellipsis")
            if locals_ and (everything or not library):
                yield from (_local(name, value) for name, value in frame.locals or ())


def _up_to_the_script(frames: list[Frame], everything: bool) -> list[Frame]:
    """Without what started the interpreter (the native frames at the outer end), and without functions that have no name."""
    last = max((i for i, frame in enumerate(frames) if not frame.native), default=len(frames) - 1)
    return frames if everything else [frame for frame in frames[: last + 1] if not frame.func.startswith("0x")]


def _folded(frames: list[Frame]) -> Iterator[Text]:
    """The innermost and the outermost of a stretch, and how many are between."""
    inner, outer, between = frames[0], frames[-1], len(frames) - 2
    yield _frame_line(inner)
    packages = dict.fromkeys(package_of(frame) for frame in frames[1:-1])
    names = ", ".join(list(packages)[:3])
    yield Text(f"… {between} frame{'s' if between != 1 else ''} in {names}", style="dim")
    yield _frame_line(outer)


def _frame_line(frame: Frame) -> Text:
    library = is_library(frame)
    func = frame.func if len(frame.func) <= _FUNC else frame.func[: _FUNC - 1] + "…"
    where = package_of(frame) if frame.native and not frame.line else f"{short_file(frame.file)}:{frame.line}"
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{func:<{_FUNC}} ", "dim" if library else "bold")
    return line.append(where, "dim" if library else "")


def _local(name: str, value: str) -> Text:
    short = value if len(value) <= _LONGEST_LOCAL else value[: _LONGEST_LOCAL - 1] + "…"
    return Text.assemble((f"    {name} = ", "dim"), (short, "dim"), no_wrap=True, overflow="ellipsis")


def _changes(report: Report) -> Text:
    """What moved since stacks were taken the last time."""
    assert report.before is not None
    clock = time.strftime("%H:%M:%S", time.localtime(report.before))
    moved = [change for change in report.changes if change.moved]
    still = [change.role for change in report.changes if not change.moved]
    parts = []
    if still:
        parts.append(f"{_some(still)} {'has' if len(still) == 1 else 'have'} not moved")
    parts += [f"{change.role} has moved (it was in {change.was})" for change in moved[:3]]
    if len(moved) > 3:
        parts.append(f"so did {len(moved) - 3} more")
    ago = duration(max(0.0, report.when - report.before))
    return Text(f"Since the stacks of {clock} ({ago} before): {'; '.join(parts)}.", style="dim")


def _some(roles: list[str]) -> str:
    return ", ".join(roles[:4]) + (f" and {len(roles) - 4} more" if len(roles) > 4 else "")


def _under(line: Text, by: int = 2) -> Padding:
    return Padding(line, (0, 0, 0, by), expand=False)
