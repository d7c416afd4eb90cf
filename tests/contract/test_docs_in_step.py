"""Generated pages say what the code says, and pages name only what exists."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast import __version__
from holdfast.drills.faults import every
from holdfast.signals.describe import page as recording_page
from holdfast.signals.describe import tables_section
from holdfast.signals.schema import TABLES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#]+)(?:#[^)]*)?\)")
_SECTION = re.compile(r"\]\((?!https?:)([^)#]*)#([^)]+)\)")


def test_the_tables_of_the_recording_page_are_what_make_docs_writes() -> None:
    text = (ROOT / "docs" / "recording.md").read_text(encoding="utf-8")
    assert text == recording_page(text), "run `make docs`"


def test_the_recording_page_explains_every_column() -> None:
    page = tables_section()
    for table in TABLES.values():
        assert f"### {table.name}\n" in page and table.empty_because in page
        assert all(f"| `{column.name}` |" in page for column in table.columns)


def test_links_and_source_files_that_pages_name_exist() -> None:
    missing = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        paths = [page.parent / target for target in _LINK.findall(text)]
        paths += [ROOT / path for path in re.findall(r"`((?:src|tests|benchmarks|docs|examples)/[\w/.-]+)`", text)]
        missing += [f"{page.relative_to(ROOT)} names {path}" for path in paths if not path.exists()]
    assert not missing, "\n".join(missing)


def test_sections_that_links_name_exist() -> None:
    missing = [
        f"{page.relative_to(ROOT)} links to {target}#{section}"
        for page in PAGES
        for target, section in _SECTION.findall(page.read_text(encoding="utf-8"))
        if section not in sections_of(page.parent / target if target else page)
    ]
    assert not missing, "\n".join(missing)


def sections_of(page: Path) -> set[str]:
    """The names that a page's headings have in links."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages == set(re.findall(r"^\| \[(\w+\.md)\]\(\1\)", index, re.MULTILINE))


def test_the_source_tree_names_every_unit_and_no_other() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^  (\w+)(?:/|\.py) ", text, re.MULTILINE))
    source = ROOT / "src" / "holdfast"
    units = {path.name for path in source.iterdir() if (path / "__init__.py").exists()}
    assert named == units | {"errors", "memory_errors", "units", "version"}


def test_the_numbers_in_the_readme_are_those_of_the_scoreboard() -> None:
    board = (ROOT / "docs" / "scoreboard.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8").partition("## How good it is")[2].partition("\n## ")[0]
    measured = re.findall(r"^\| (?!runs that)[^|]+ \| (\d+ of \d+)[^|]* \| ok \|$", board, re.MULTILINE)
    assert len(measured) == 4 and sorted(measured) == sorted(re.findall(r"\| (\d+ of \d+) \|", readme))
    assert f"{len(every())} kinds of fault" in readme


def test_a_measured_number_names_the_architecture_of_its_machine() -> None:
    machine, architecture = re.compile(r"H200|\b(?:\d+|two)[- ](?:CPU )?cores?\b"), re.compile(r"x86_64|aarch64")
    unnamed = [
        f"{page.relative_to(ROOT)}: {paragraph[:100]}"
        for page in PAGES
        for paragraph in re.split(r"\n\s*\n", page.read_text(encoding="utf-8"))
        if machine.search(paragraph) and not architecture.search(paragraph)
    ]
    assert not unnamed, "\n".join(unnamed)


def test_the_changelog_has_this_version() -> None:
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_readme_is_read_in_five_minutes() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 120 and max(map(len, lines)) <= 140
