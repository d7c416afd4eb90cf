"""A unit imports only units of a strictly lower level; the table is DESIGN's. And no files import each other in a circle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"

LEVELS = {
    "__main__": 10,  # `python -m holdfast`: starts the command line
    "cli": 9,
    "web": 8,
    "demo": 7,  # the training that `holdfast demo` starts, written as a user would; its verb is cli/demo.py
    "supervisor": 7,
    "train": 7,
    "launch": 7,  # writes what Slurm, Kubernetes and clouds start
    "integrations": 7,
    "drills": 7,
    "recovery": 6,
    "diagnosis": 5,
    "detectors": 4,
    "logs": 4,
    "__init__": 4,  # `import holdfast`: hands out `watch`, which lives in inside
    "injected": 4,  # replay, plan and repro: the script started again for another purpose
    "inside": 3,
    "probe": 3,
    "state": 2,
    "data": 2,
    "loading": 3,  # measures the loader that a factory makes; `data` knows what a factory is
    "signals": 1,
    "matching": 2,  # a checkpoint against a model or another one: compared, loaded
    "checkpoints": 1,
    "drawing": 1,
    "environment": 1,
    "errors": 0,
    "units": 0,
    "version": 0,
    "memory_errors": 0,  # which errors are memory that ran out: asked by the loop, by `plan` and by the diagnosis
}
FILES = sorted(SOURCE.rglob("*.py"))


def unit_of(file: Path) -> str:
    """The unit that a source file belongs to: its folder, or its own name beside the package."""
    return file.relative_to(SOURCE).with_suffix("").parts[0]


def imported_units(file: Path) -> Iterator[tuple[str, int]]:
    """Each unit of Holdfast that a file imports, anywhere in it, with the line."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield from _unit(name.name.split("."), (), node.lineno)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(name.name for name in node.names)
            yield from _unit([*_package(file, node.level), *(node.module or "").split(".")], names, node.lineno)


def _package(file: Path, level: int) -> tuple[str, ...]:
    """What the dots of a relative import stand for."""
    return ("holdfast", *file.relative_to(SOURCE).parent.parts)[: -(level - 1) or None] if level else ()


def _unit(path: list[str], names: tuple[str, ...], line: int) -> Iterator[tuple[str, int]]:
    path = [part for part in path if part]
    if path[:1] != ["holdfast"]:
        return
    if len(path) > 1:
        yield path[1], line
    elif not names:
        yield "__init__", line
    for name in names if len(path) == 1 else ():
        yield (name if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file() else "__init__"), line


def test_a_unit_imports_only_units_of_a_lower_level() -> None:
    wrong = []
    for file in FILES:
        own = unit_of(file)
        assert own in LEVELS, f"{own} has no level: give it one in DESIGN and in this table"
        for unit, line in imported_units(file):
            if unit != own and LEVELS.get(unit, 99) >= LEVELS[own]:
                wrong.append(f"{file}:{line}: {own} (level {LEVELS[own]}) imports {unit} (level {LEVELS.get(unit)})")
    assert not wrong, "\n".join(wrong)


WRITTEN = {
    "import holdfast": "__init__",
    "import holdfast.probe.sql as sql": "probe",
    "def later():\n    from holdfast.cli.main import main": "cli",
    "from holdfast import signals": "signals",
    "from holdfast import watch": "__init__",
    "from ..probe import sql": "probe",
    "from .. import errors": "errors",
    "from . import schema": "signals",
}


def test_an_import_is_seen_however_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    for name in ("signals", "probe", "cli"):
        (tmp_path / name).mkdir()
    (tmp_path / "errors.py").touch()
    file = tmp_path / "signals" / "file.py"
    for text, unit in WRITTEN.items():
        file.write_text(text)
        assert [found for found, _ in imported_units(file)] == [unit], text


def name_of(file: Path) -> str:
    """The module that a file is; a package's is that of its `__init__.py`."""
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(("holdfast", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def imported_files(files: dict[str, Path]) -> dict[str, set[str]]:
    """Which files each file imports: at its top, in functions, and under TYPE_CHECKING."""
    found: dict[str, set[str]] = {}
    for name, file in files.items():
        named = set[str]()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                named |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                module = ".".join(part for part in (*_package(file, node.level), node.module) if part)
                named |= {full if (full := f"{module}.{one.name}") in files else module for one in node.names}
        found[name] = named & files.keys() - {name}
    return found


def ways_from(start: str, imports: dict[str, set[str]]) -> dict[str, list[str]]:
    """The shortest way to every file that can be reached from one; also back to itself, if there is a way."""
    ways = {one: [start, one] for one in sorted(imports[start])}
    waiting = list(ways)
    for one in waiting:
        for following in sorted(imports[one] - ways.keys()):
            ways[following] = [*ways[one], following]
            waiting.append(following)
    return ways


def circles(imports: dict[str, set[str]]) -> dict[str, list[str]]:
    """Every file that imports itself through others, with the shortest such way."""
    return {one: ways[one] for one in imports if one in (ways := ways_from(one, imports))}


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports in functions and under TYPE_CHECKING count: a circle hides who knows whom."""
    found = circles(imported_files({name_of(file): file for file in FILES}))
    assert not found, "\n".join(sorted({" -> ".join(way) for way in found.values()}, key=len))


def test_a_circle_is_seen_however_its_imports_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    (tmp_path / "probe").mkdir()
    texts = {
        "errors.py": "import json",
        "probe/__init__.py": "",
        "probe/sql.py": "from .. import errors\nif TYPE_CHECKING:\n    from . import rows",
        "probe/rows.py": "def later():\n    import holdfast.probe.views as views",
        "probe/views.py": "from holdfast.probe.sql import query",
        "probe/above.py": "from holdfast.probe import sql",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    found = circles(imported_files({name_of(tmp_path / name): tmp_path / name for name in texts}))
    sql, rows, views = (f"holdfast.probe.{name}" for name in ("sql", "rows", "views"))
    assert found == {sql: [sql, rows, views, sql], rows: [rows, views, sql, rows], views: [views, sql, rows, views]}
