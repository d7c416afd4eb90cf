"""Each claim in the tables of docs/integrations.md names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NOTHING = ("no", "the same")


def rows() -> list[list[str]]:
    """The rows of the tables that compare with and without a callback."""
    page = (ROOT / "docs/integrations.md").read_text(encoding="utf-8")
    tables = re.findall(r"^\| \| `holdfast run` alone .*\n\|---.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    assert len(tables) == 5
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for table in tables for line in table.splitlines()]


def test_each_cell_names_a_test_that_exists() -> None:
    defined = {name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())}
    for what, *cells in rows():
        assert len(cells) == 2, what
        for cell in cells:
            named = set(re.findall(r"`(test_\w+)`", cell))
            assert named or cell.strip(" |") in _NOTHING, f"{what}: {cell} names no test"
            assert named <= defined, f"{what}: there is no {', '.join(named - defined)}"
