"""What is piped into a file or another program: plain lines, without the padding of a terminal."""

from __future__ import annotations

import pytest
from rich.table import Table

from holdfast.cli.output import output


def test_piped_lines_end_where_their_text_ends(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name", "state", box=None)
    table.add_row("first", "a")
    table.add_row("second", "much longer")
    console = output(width=60)
    console.print(table)
    console.print("done   ")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [line.rstrip() for line in lines] and lines[-1] == "done" and "much longer" in lines[-2]
    assert console.width == 60 and not console.is_terminal
