"""Generated pages say what the code says, and pages name only what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast import __version__
from holdfast.drills.faults import every
from holdfast.signals.describe import schema_page
from holdfast.signals.schema import TABLES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#]+)(?:#[^)]*)?\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def test_the_schema_page_is_what_make_docs_writes() -> None:
    assert (ROOT / "docs" / "schema.md").read_text(encoding="utf-8") == schema_page(), "run `make docs`"


def test_the_schema_page_explains_every_column() -> None:
    page = schema_page()
    for table in TABLES.values():
        assert f"## {table.name}\n" in page and table.empty_because in page
        assert all(f"| `{column.name}` |" in page for column in table.columns)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_that_exist(page: Path) -> None:
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{name_of(page)} points to {target}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_source_files_that_a_page_names_exist(page: Path) -> None:
    for path in re.findall(r"`((?:src|tests|benchmarks|docs|examples)/[\w/.-]+)`", page.read_text(encoding="utf-8")):
        assert (ROOT / path).exists(), f"{name_of(page)} names {path}, which is not there"


def test_the_tree_in_the_readme_names_every_unit_and_no_other() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^  (\w+)(?:/|\.py) ", text, re.MULTILINE))
    source = ROOT / "src" / "holdfast"
    units = {path.name for path in source.iterdir() if (path / "__init__.py").exists()} | {"errors"}
    assert named == units


def test_the_numbers_in_the_readme_are_those_of_the_scoreboard() -> None:
    board = (ROOT / "docs" / "scoreboard.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("## How good it is")[2].partition("\n## ")[0]
    measured = re.findall(r"^\| (?!runs that)[^|]+ \| (\d+ of \d+)[^|]* \| ok \|$", board, re.MULTILINE)
    assert len(measured) == 4 and sorted(measured) == sorted(re.findall(r"\| (\d+ of \d+) \|", readme))
    assert f"{len(every())} kinds of fault" in readme


def test_the_changelog_has_this_version() -> None:
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
