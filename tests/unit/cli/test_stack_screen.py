from __future__ import annotations

import io

from made_stacks import C10D, in_all_reduce, rank, reading, thread
from rich.console import Console

from holdfast.cli.stack_screen import frame_lines, stack_screen
from holdfast.probe.stacks.frames import Frame, ProcessStacks
from holdfast.probe.stacks.report import Change, Report
from holdfast.probe.stacks.sentence import explain


def shown(stacks: list[ProcessStacks], **more: object) -> list[str]:
    report = Report(name="run", when=1000.0, stacks=stacks, verdict=explain(stacks), **more)  # type: ignore[arg-type]
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(stack_screen(report))
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_sixty_four_ranks_are_two_blocks_and_a_sentence() -> None:
    lines = shown([reading(7) if number == 7 else in_all_reduce(number) for number in range(64)])
    assert "63 ranks (0-6, 8-63) · process 1000 shown · waits" in lines
    assert "rank 7 · process 1007 · is in read() of /job/settings" in lines
    assert len(lines) < 20 and lines[-2].startswith("63 ranks (0-6, 8-63) wait in all_reduce")


def test_library_code_is_folded_to_its_two_ends() -> None:
    deep = [Frame(f"f{n}", C10D, n) for n in range(1, 9)]
    one = rank(0, *deep, Frame("main", "/job/train.py", 3))
    lines = [line.plain.rstrip() for line in frame_lines(one.threads[0])]
    assert [line.split()[0] for line in lines] == ["f1", "…", "f8", "main"]
    assert lines[1] == "… 6 frames in torch"
    assert len(list(frame_lines(one.threads[0], everything=True))) == 9


def test_what_started_the_interpreter_and_functions_without_a_name_are_left_out() -> None:
    natives = [Frame(name, "libc.so.6", 0, "libc.so.6", native=True) for name in ("read", "0xffff97f57744", "__libc_start")]
    one = thread(1, natives[0], natives[1], Frame("main", "/job/train.py", 3), natives[2])
    assert [line.plain.split()[0] for line in frame_lines(one)] == ["read", "main"]


def test_a_refusal_is_told_once() -> None:
    refused = [ProcessStacks(n, f"rank {n}", n, problem="CAP_SYS_PTRACE is missing", by="nobody") for n in range(2)]
    one, other = refused[0], rank(1, Frame("main", "/job/train.py", 3), problem="CAP_SYS_PTRACE is missing", by="faulthandler")
    lines = shown([one, other])
    assert "  CAP_SYS_PTRACE is missing; no stacks" in lines
    assert "  as above; stacks by faulthandler:" in lines


def test_what_moved_since_the_stacks_before_is_a_line() -> None:
    changes = [Change(1000, "rank 0", False, "main() (train.py:3)"), Change(1001, "rank 1", True, "load() (data.py:9)")]
    text = " ".join(shown([in_all_reduce(0), reading(1)], before=940.0, changes=changes))
    assert "(1 min 0 s before): rank 0 has not moved; rank 1 has moved (it was in load() (data.py:9))." in text
