"""`holdfast explain`: a code, a pasted error or a log, in plain words."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from every_case import every_case

from holdfast.diagnosis.failures import CODES

Holdfast = Callable[..., Any]
HEADINGS = ("What Holdfast looks at", "Causes", "Fixes")
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."
LOG = f"""\
/env/torch/optim/lr_scheduler.py:224: UserWarning: Detected call of `lr_scheduler.step()` before `optimizer.step()`.
Epoch 1: loss 0.52
Traceback (most recent call last):
  File "train.py", line 41, in <module>
    loss = model(x)
{OUT_OF_MEMORY}
"""


@every_case("code", CODES)
def test_a_code_shows_its_page_in_100_columns(holdfast: Holdfast, code: str) -> None:
    done = holdfast("explain", code)
    assert done.code == 0 and done.err == ""
    lines = [line.rstrip() for line in done.out.splitlines()]
    assert lines[0].startswith(f"{code}: ") and max(map(len, lines)) <= 100
    assert [line for line in lines if line in HEADINGS] == list(HEADINGS)
    assert "```" not in done.out and "**Fix" not in done.out


@every_case("given", [("Loss Spike",), ("loss_spike",), ("loss", "spike")])
def test_a_code_may_be_written_in_other_ways(holdfast: Holdfast, given: tuple[str, ...]) -> None:
    assert holdfast("explain", *given).out.startswith("loss-spike: ")


def test_an_unknown_code_names_the_nearest(holdfast: Holdfast) -> None:
    done = holdfast("explain", "loss-spik")
    assert done.code == 2 and done.out == "" and "holdfast explain loss-spike" in done.err


@every_case(
    ("word", "code"), [("nan", "non-finite-loss"), ("oom", "out-of-memory"), ("stuck", "hang"), ("loss-nan", "non-finite-loss")]
)
def test_a_word_of_the_field_names_the_page_about_it(holdfast: Holdfast, word: str, code: str) -> None:
    done = holdfast("explain", word)
    assert done.code == 2 and code in done.err.partition("fix: ")[2].partition(" (")[0]


def test_a_cause_is_explained_too(holdfast: Holdfast) -> None:
    done = holdfast("explain", "results-in-memory")
    out = " ".join(done.out.split())
    assert done.code == 0 and "12 million take 2.4 GB" in out and "A cause of host-memory-growth, host-out-of-memory" in out


def test_a_pasted_error_gives_meaning_fix_and_page(holdfast: Holdfast) -> None:
    done = holdfast("explain", OUT_OF_MEMORY)
    assert done.code == 0
    for words in (
        "out of GPU memory",
        "Tried to allocate 2.50 GiB",
        "fix: Halve the batch",
        "holdfast explain gpu-out-of-memory",
    ):
        assert words in done.out


def test_an_error_that_was_wrapped_on_its_way_is_still_found(holdfast: Holdfast) -> None:
    done = holdfast("explain", "RuntimeError: element 0 of tensors does not require grad and\ndoes not have a grad_fn")
    assert done.code == 0 and "parameters-not-trained" in done.out


def test_the_end_of_a_traceback_counts_more_than_a_warning_before_it(holdfast: Holdfast, here: Path) -> None:
    (here / "train.log").write_text(LOG)
    done = holdfast("explain", "train.log")
    assert done.code == 0 and "train.log, line 6 of 6" in done.out
    assert done.out.index("gpu-out-of-memory") < done.out.index("loop-mistake")


def test_the_error_of_one_rank_counts_more_than_what_the_others_say_later(holdfast: Holdfast, here: Path) -> None:
    later = "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)\nChildFailedError:\nBrokenPipeError\n"
    (here / "log").write_text(LOG + later)
    answer = json.loads(holdfast("explain", "log", "--json").out)
    assert [match["code"] for match in answer["matches"][:2]] == ["gpu-out-of-memory", "process-died"]
    assert [match["kind"] for match in answer["matches"]] == ["error", "follows", "follows", "warning"]


def test_at_most_three_are_told(holdfast: Holdfast, here: Path) -> None:
    (here / "log").write_text(f"{LOG}No space left on device\ndatabase is locked\nUnidentifiedImageError\nKilled\n")
    out = holdfast("explain", "log").out
    assert out.count("fix: ") == 3 and "more: --json" in out


def test_a_run_folder_stands_for_what_its_command_printed(holdfast: Holdfast, here: Path) -> None:
    (here / "runs" / "first").mkdir(parents=True)
    (here / "runs" / "first" / "train.log").write_text(LOG)
    assert "gpu-out-of-memory" in holdfast("explain", "runs/first").out
    done = holdfast("explain", "runs")
    assert done.code == 2 and "train.log" in done.err


def test_nothing_known_says_so_and_what_the_log_ends_with(holdfast: Holdfast, here: Path) -> None:
    (here / "log").write_text('Traceback (most recent call last):\n  File "a.py", line 1\nmine.OddError: the moon is full\n')
    done = holdfast("explain", "log")
    assert done.code == 2 and done.out == "" and "mine.OddError: the moon is full" in done.err and "fix: " in done.err
    assert json.loads(holdfast("explain", "log", "--json").out)["unknown_error"]["line"] == 3


def test_an_unknown_error_is_told_before_a_known_warning(holdfast: Holdfast, here: Path) -> None:
    first = LOG.splitlines()[0]
    (here / "log").write_text(
        f"{first}\nTraceback (most recent call last):\n  File 'a.py', line 1\nValueError: the moon is full\n"
    )
    done = holdfast("explain", "log")
    assert done.code == 0 and done.out.index("the moon is full") < done.out.index("loop-mistake")


@pytest.mark.parametrize("given", ["missing.log", "runs/none/train.log"])
def test_a_file_that_is_not_there_is_named(holdfast: Holdfast, given: str) -> None:
    done = holdfast("explain", given)
    assert done.code == 2 and f"no file {given}" in done.err


def test_a_page_as_json_holds_its_causes(holdfast: Holdfast) -> None:
    done = holdfast("explain", "gpu-out-of-memory", "--json")
    row = json.loads(done.out)
    assert (
        done.code == 0 and row["causes"][0]["cause"] == "micro-batch-too-large" and row["page"].startswith("# gpu-out-of-memory")
    )


def test_the_numbers_of_the_message_say_who_holds_the_memory(holdfast: Holdfast) -> None:
    capacity = "GPU 0 has a total capacity of 23.64 GiB of which 312.06 MiB is free."
    own = "Including non-PyTorch memory, this process has 14.12 GiB memory in use."
    assert "Other processes hold 9.22" in " ".join(holdfast("explain", f"{OUT_OF_MEMORY} {capacity} {own}").out.split())


def piped(command: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*command, "explain"], input=data, capture_output=True, timeout=600, check=False)


def test_a_log_through_a_pipe_is_read(command: list[str]) -> None:
    done = piped(command, LOG.encode())
    assert done.returncode == 0 and b"gpu-out-of-memory" in done.stdout and b"line 6 of 6" in done.stdout


def test_a_binary_file_and_an_empty_one_are_no_trouble(holdfast: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (b"", bytes(range(256)) * 100, b"\xff\xfe" + LOG.encode("utf-16-le")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        done = holdfast("explain")
        assert done.code == (0 if data.startswith(b"\xff\xfe") else 2) and "Traceback" not in done.err
