"""Draw the README's picture from a real run: `python docs/make_picture.py RUN_FOLDER > docs/tail.svg`."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console

from holdfast.cli.screen import screen
from holdfast.probe.glance import look
from holdfast.signals.run_folder import RunFolder

WIDTH = 100


def main() -> None:
    run = RunFolder.open(Path(sys.argv[1]))
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True)
    console.print(screen(look(run), WIDTH))
    picture = console.export_svg(title="holdfast tail")
    sys.stdout.write(re.sub(r"@font-face\s*{.*?}", "", picture, flags=re.DOTALL))  # any monospaced font will do


if __name__ == "__main__":
    main()
