"""Every command and every program in README and docs runs as it is written, and prints what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from doc_blocks import NOT_RUN, PAGES, ROOT, RUN, SKIPPED, Block, Workplace, blocks_of, is_skipped


def has_commands(page: Path) -> bool:
    return any(block.language in RUN and not all(map(is_skipped, block.commands)) for block in blocks_of(page))


SLOW = (
    "before_the_run",
    "capture",
    "checkpoints",
    "diagnose",
    "drills",
    "integrations",
    "launch",
    "mcp",
    "recording",
    "run",
    "sensors",
    "trackers",
    "train",
    "ui",
)  # their verbs have tests of their own
WITH_COMMANDS = [
    pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.slow] if page.stem in SLOW else [])
    for page in PAGES
    if has_commands(page)
]


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    workplace = Workplace(tmp_path)
    try:
        for block in blocks_of(page):
            if block.language in RUN:
                workplace.type(block)
    finally:
        workplace.leave()


def test_every_block_says_whether_it_is_run() -> None:
    for page in PAGES:
        for block in blocks_of(page):
            assert block.language in (*RUN, *NOT_RUN), f"{block}: tag it as one of {RUN}, or as {NOT_RUN[0]} if it is not run"
            assert block.commands, f"{block}: no line of this console block starts with `$ `"
        fences = page.read_text(encoding="utf-8").count("\n```")
        assert fences == 2 * len(blocks_of(page)), f"{page}: a code block is not closed"


def test_commands_are_told_from_what_they_print() -> None:
    body = "$ holdfast ps\nNAME  STEP\n$ holdfast query \\\n>   'SELECT 1'\n1\n"
    block = Block(ROOT / "README.md", 1, "console", "", body)
    assert block.commands == ["holdfast ps", "holdfast query \\\n  'SELECT 1'"]


def test_only_listed_commands_are_skipped() -> None:
    assert is_skipped("make test") and is_skipped(".venv/bin/pip install x")
    assert not is_skipped("make testing") and not is_skipped("make help")
    assert all(SKIPPED.values())


SHOWN = "$ holdfast ps\nrun   step\nlive   120\n$ holdfast tail\n"


def shown(how: str, body: str = SHOWN) -> Block:
    return Block(ROOT / "README.md", 1, "console", how, body)


def test_output_that_differs_from_the_page_is_noticed() -> None:
    assert shown("").shows(0, "run   step\nlive   120  \n") and shown("").shows(1, "whatever it prints\n")
    assert not shown("").shows(0, "run   step\nlive   121\n") and not shown("").shows(0, "run   step\n")


def test_where_numbers_vary_words_must_still_agree() -> None:
    assert shown("numbers vary").shows(0, "run     step\nlive  2,055\n")
    assert not shown("numbers vary").shows(0, "run     step\nfirst  2,055\n")
    sizes = shown("numbers vary", "$ x\nread 9 KB in 0.2 s, 14:03:12, loss 1e-3\n")
    assert sizes.shows(0, "read 67.7 MB in 1 min 20 s, 05:08:29, loss 0.25\n") and not sizes.shows(
        0, "read 9 KB in 0.2 s, 14:03:12\n"
    )


def test_an_ellipsis_stands_for_what_is_not_shown() -> None:
    assert shown("", "$ x\nfirst\n…\nlast\n").shows(0, "first\nmore\nand more\nlast\n")
    assert not shown("", "$ x\nfirst\n…\nlast\n").shows(0, "first\nmore\n")
