"""Draw the README's picture, how `holdfast demo` ends: `python docs/make_picture.py > docs/healed.svg`."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

from rich.console import Console
from rich.text import Text

WIDTH = 100
FIRST, LAST = "$ holdfast diagnose demo", "What to try next:"


def main() -> None:
    shown = {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "holdfast", "demo"]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    lines = subprocess.run(command, env={**os.environ, **shown}, check=True, **both).stdout.splitlines()
    first, last = (next(place for place, line in enumerate(lines) if words in line) for words in (FIRST, LAST))
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True)
    console.print(Text.from_ansi("\n".join(lines[first:last]).rstrip()))
    picture = console.export_svg(title="holdfast demo")
    sys.stdout.write(re.sub(r"@font-face\s*{.*?}", "", picture, flags=re.DOTALL))  # any monospaced font will do


if __name__ == "__main__":
    main()
