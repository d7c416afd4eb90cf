"""Benchmarks are not run every day: what they import of Holdfast must exist all the same."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))
OPTIONAL = ("holdfast.integrations.",)  # each imports its trainer or tracker


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_imports_of_holdfast_exists(script: Path) -> None:
    missing = []
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "holdfast":
            module = str(node.module)
            if module.startswith(OPTIONAL):
                continue
            holder = importlib.import_module(module)
            missing += [
                f"{module}.{alias.name}"
                for alias in node.names
                if not hasattr(holder, alias.name) and importlib.util.find_spec(f"{module}.{alias.name}") is None
            ]
    assert not missing
