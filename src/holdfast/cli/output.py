"""Where answers are printed: a terminal as it is, or plain lines that end where their text ends."""

from __future__ import annotations

import io
import re
import sys
from typing import Any, cast

from rich.console import Console

from holdfast.cli.show import WIDTH

_PADDING = re.compile(r"[ \t]+(?=\n|$)")


def output(*, width: int = WIDTH, at_most: int | None = None, theme: Any = None) -> Console:
    """Standard output. A terminal is used in its whole width, or `at_most`; elsewhere lines are `width` wide, without padding."""
    console = Console(highlight=False, theme=theme)
    if not console.is_terminal:
        return Console(highlight=False, theme=theme, width=width, file=cast(Any, _Unpadded()))
    return console if at_most is None else Console(highlight=False, theme=theme, width=min(console.width, at_most))


class _Unpadded(io.TextIOBase):
    """Standard output without the spaces that Rich puts behind a line to fill its width."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Rich draws in ASCII where nothing else can be written."""
        return sys.stdout.encoding or "utf-8"

    def write(self, text: str) -> int:
        """Write whole lines."""
        sys.stdout.write(_PADDING.sub("", text))
        return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        sys.stdout.flush()
