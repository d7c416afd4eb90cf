"""`holdfast drill --list`: all faults, what each does, what it needs, and what is expected of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from holdfast.drills import faults
from holdfast.drills.injection.facts import FACTS


def rows(own: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each fault of the house, and of the user's file."""
    listed = []
    for number, code in enumerate((*faults.every(), *own), 1):
        fault = faults.find(code, own.get(code, ""))
        expected = fault.expected
        listed.append(
            {
                "number": number,
                "code": code,
                "description": fault.description,
                "needs": list(fault.needs),
                "findings": list(expected.findings),
                "causes": list(expected.causes),
                "survivable": expected.survivable,
                "from_start": fault.from_start,
                "unseen": expected.unseen,
            }
        )
    return listed


def show_list(own: Mapping[str, str], *, as_json: bool) -> None:
    """On stdout."""
    if as_json:
        print(json.dumps(rows(own), ensure_ascii=False))
        return
    from rich.table import Table
    from rich.text import Text

    from holdfast.cli.checkpoints.layout import page

    grid = Table.grid(padding=(0, 2))
    for row in rows(own):
        text = Text.assemble((row["code"], "bold"), f": {row['description']}")
        grid.add_row(Text(f"{row['number']:3d}", "dim"), text.append(f"\n{'; '.join(_more(row))}", "dim"))
    page().print(grid)


def _more(row: Mapping[str, Any]) -> list[str]:
    more = [f"needs {' and '.join(FACTS.get(need, need) for need in row['needs'])}"] if row["needs"] else []
    if row["unseen"]:
        more.append(f"not detectable: {row['unseen']}")
    elif row["findings"]:
        more.append(f"expects {' or '.join(row['findings'])}")
    else:
        more.append("harmless: expects no finding")
    if row["from_start"]:
        return [*more, "active from the first step"]
    return [*more, "survivable" if row["survivable"] else "not survivable"]
