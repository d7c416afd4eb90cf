"""Write `docs/failures`: `python -m holdfast.diagnosis.describe docs/failures`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from holdfast.diagnosis.failures import CODES, GROUPS, page
from holdfast.diagnosis.known_texts import KINDS, KNOWN_TEXTS
from holdfast.diagnosis.known_texts.known_text import Pattern

_OPENING = """\
# Failures: what you see, why, and what helps

This page is written by `make docs`; a test keeps it in step. Each page opens with the error text or what the curve does.

In a terminal: `holdfast explain CODE` shows a page; `holdfast explain 'the error'` or `holdfast explain train.log` finds it.
"""
_TEXTS = """\
## Error texts that are known

`*` stands for what differs: numbers, paths, devices. An *error* is where to begin; what *follows* came after something else.

| the text | | page |
|---|---|---|
"""


def failure_pages() -> dict[str, str]:
    """Every page of `docs/failures` by its file name."""
    return {"README.md": index_page(), **{f"{code}.md": linked(page(code).text, code) for code in CODES}}


def index_page() -> str:
    """All pages and all known texts in tables."""
    return "\n".join([_OPENING, *_groups(), _TEXTS + "\n".join(_texts()) + "\n"])


def _groups() -> Iterator[str]:
    for group, codes in GROUPS.items():
        yield f"## {group}\n\n| code | | severity |\n|---|---|---|"
        yield from (f"| [`{code}`]({code}.md) | {page(code).title} | {page(code).severity.replace('|', '/')} |" for code in codes)
        yield ""


def _texts() -> Iterator[str]:
    for known in KNOWN_TEXTS:
        says = known.says[0]
        shown = f"`{_unquoted(says)}`" if not isinstance(says, Pattern) else f"({known.name.replace('-', ' ')})"
        yield f"| {shown} | {KINDS[known.kind]} | [{known.page}]({known.page}.md) |"


def _unquoted(says: str) -> str:
    return says.removeprefix("^").removesuffix("$").replace("`", "'").replace("|", "/")


def linked(text: str, code: str) -> str:
    """The same page with links: to the pages of other codes, and to other documents."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    for place in range(0, len(parts), 2):  # what is not a code block
        parts[place] = re.sub(r"`([a-z-]+)`", lambda found: _link(found, code), parts[place])
        parts[place] = re.sub(r"`docs/([\w/]+\.md)`", r"[docs/\1](../\1)", parts[place])
    return "".join(parts)


def _link(found: re.Match[str], code: str) -> str:
    return f"[`{found[1]}`]({found[1]}.md)" if found[1] in CODES and found[1] != code else found[0]


def write(folder: Path) -> None:
    """Write all of them; a page that no code has any more goes."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = failure_pages()
    for old in folder.glob("*.md"):
        if old.name not in pages:
            old.unlink()
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
