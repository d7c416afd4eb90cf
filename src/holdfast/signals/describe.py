"""Write the tables into `docs/recording.md`: `python -m holdfast.signals.describe docs/recording.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.signals.schema import TABLES, Column, Kind, Table

_TYPES = {Kind.FLOAT: "float", Kind.INT: "integer", Kind.STRING: "text"}

_TITLE = "## The tables\n"
_OPENING = f"""\
{_TITLE}
From here on this page is written by `make docs` from `src/holdfast/signals/schema.py`; a test keeps the two in step.

`holdfast query SQL` reads these tables, of all ranks together: while the run trains, while it hangs, and after it has
ended. `holdfast tables` shows how many rows each of them has now.

Times are seconds since 1970, durations are seconds, sizes are bytes. `NULL` means not measured; NaN is a value:
`isnan(loss)` finds a loss that became NaN.
"""

_ADDED = """\
### Columns that every query adds

| column | type | meaning |
|---|---|---|
| `rank` | integer | the rank that recorded the row; 0 when the training is not distributed |
| `part` | integer | which training of that rank: 0 is the first, 1 the next one in the same run (a second model, a restart) |

`processes`, `gpus` and `stacks` are seen from outside: the first two have neither, `stacks` has a `rank` of its own.
"""

_VIEW = """\
### python.torch_trace

The same rows as `modules`, under the names that other PyTorch probes use, so that their queries run as they are.

| column | type | meaning |
|---|---|---|
| `step` | integer | number of the step |
| `module` | text | the module's name in its model |
| `stage` | text | forward or backward |
| `duration` | float | `modules.seconds` |
| `allocated` | integer | `modules.gpu_allocated`; without a GPU the memory of the process (`modules.host_rss`) |
| `time` | float | when it was recorded, in seconds since 1970 |
| `rank` | integer | as above |

### python.backtrace

The Python functions of the training thread (of the lowest rank) in the newest stacks, innermost first. While the run lives,
the query itself takes stacks if none were taken in the last 10 seconds. All threads, all processes and all moments are in
`stacks`.

| column | type | meaning |
|---|---|---|
| `depth` | integer | 0 is the innermost function |
| `func`, `file`, `lineno` | text, text, integer | function, file, line |
| `thread_name`, `holds_gil`, `rank`, `pid`, `thread`, `time` | | as in `stacks` |
"""


def page(text: str) -> str:
    """The page with its tables rewritten; the text before them stays."""
    return text[: text.index(_TITLE)] + tables_section()


def tables_section() -> str:
    """Every table and column, as Markdown."""
    return "\n".join([_OPENING, *_contents(TABLES.values()), _ADDED, *map(_section, TABLES.values()), _VIEW])


def _contents(tables: Iterable[Table]) -> Iterator[str]:
    yield "| table | a row is |"
    yield "|---|---|"
    yield from (f"| [`{table.name}`](#{table.name}) | {table.a_row_is} |" for table in tables)
    yield ""


def _section(table: Table) -> str:
    rows = "\n".join(map(_line, table.columns))
    return (
        f"### {table.name}\n\nA row is {table.a_row_is}.\n\n"
        f"| column | type | meaning |\n|---|---|---|\n{rows}\n\n"
        f"When it is empty: {table.empty_because}\n"
    )


def _line(column: Column) -> str:
    meaning = column.description.replace("|", "\\|")
    return f"| `{column.name}` | {_TYPES[column.kind]} | {meaning} |"


if __name__ == "__main__":
    _path = Path(sys.argv[1])
    _path.write_text(page(_path.read_text(encoding="utf-8")), encoding="utf-8")
