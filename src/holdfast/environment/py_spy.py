"""Where py-spy is installed."""

from __future__ import annotations

import contextlib
import shutil
import sys
from importlib import metadata
from pathlib import Path

_NAME = "py-spy"


def path_of_py_spy() -> str | None:
    """The program beside this Python, else on the path, else where its package was installed (`--user`, `--prefix`, a `.pth`)."""
    beside = Path(sys.executable).parent / _NAME
    return str(beside) if beside.exists() else shutil.which(_NAME) or _of_package()


def _of_package() -> str | None:
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files(_NAME) or ():
            if file.name == _NAME and (path := Path(str(file.locate()))).is_file():
                return str(path.resolve())
    return None
