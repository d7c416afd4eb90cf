"""A shared library that stands in for a vendor's, made from a C file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "unit" / "environment"


def compile_library(source: str, target: Path) -> Path:
    """Make it, or skip the test where nothing compiles."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler to make a stand-in with")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(target), str(SOURCES / source)], check=True)
    return target
