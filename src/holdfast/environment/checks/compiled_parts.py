"""Which of Holdfast's compiled parts are installed? Everything works without them; what is slower or missing is shown here."""

from __future__ import annotations

import importlib.machinery
from pathlib import Path

from holdfast.environment.check import Check, Fix, Verdict, note, ok
from holdfast.environment.machine import Machine

_SOURCE = Path(__file__).parents[2]
_PARTS = {
    "inside/gradients/_by_address": "gradients are read through torch, a little slower",
    "probe/attach/_enter": "`holdfast attach` needs a process with Python 3.14 or newer",
}
_FIX = Fix(
    "install a C compiler, then build Holdfast from its source",
    ("pip install --force-reinstall --no-deps --no-binary :all: holdfast",),
)


def ask(_: Machine) -> Verdict:
    """Look for the files; nothing is loaded."""
    return judge(_SOURCE)


def judge(source: Path) -> Verdict:
    """What the compiled parts that are not in a folder of the package would do."""
    missing = [part for part in _PARTS if not _is_built(source / part)]
    facts = {Path(part).name: part not in missing for part in _PARTS}
    if missing:
        return note(f"pure Python: {'; '.join(_PARTS[part] for part in missing)}", _FIX, **facts)
    return ok("Holdfast's compiled parts are installed", **facts)


def _is_built(part: Path) -> bool:
    return any(part.with_name(part.name + suffix).exists() for suffix in importlib.machinery.EXTENSION_SUFFIXES)


CHECK = Check(name="compiled-parts", asks="compiled parts of Holdfast itself", ask=ask)
