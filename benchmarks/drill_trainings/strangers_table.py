"""The scores of `make strangers` become a section of docs/scoreboard.md: both halves, and the misses of one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scoreboard import AT_A_TIME, END_OF_STRANGERS, STRANGERS, Row, table

HALVES = {
    "score": "Only scored: nothing in Holdfast was chosen by looking at these.",
    "build": "For building: what was missed here was looked at, and Holdfast changed.",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """A share of the faults that must be reached: how many are `key`, of those that are `of`."""

    words: str
    key: str
    of: str
    share: float

    def met(self, count: int, whole: int) -> bool:
        """Whether it is; nothing to count is no miss."""
        return count >= self.share * whole


BARS = (
    Bar("seen", "seen", "to_see", 0.95),
    Bar("first cause right", "cause_right", "to_explain", 0.85),
    Bar("survived", "survived", "to_survive", 0.95),
)


def newest(rows: list[Row]) -> list[Row]:
    """A run that was made again counts as it came out last."""
    return list({(row["training"], row.get("fault"), row["seed"]): row for row in rows}.values())


def counts(faults: list[Row]) -> list[tuple[int, int]]:
    """For each bar how many there are, and of how many. A cause is counted where the fault was seen."""
    there = [row for row in faults if row["injected"]]
    wholes = [[row for row in there if row[bar.of] and (row["seen"] or bar.key != "cause_right")] for bar in BARS]
    return [(sum(bool(row[bar.key]) for row in whole), len(whole)) for bar, whole in zip(BARS, wholes, strict=True)]


def half_told(half: str, rows: list[Row]) -> Iterator[str]:
    """The numbers of one half, a line for each bar; nothing if none of it was run."""
    faults = [row for row in rows if row["half"] == half and "fault" in row]
    if not faults:
        return
    for bar, (count, whole) in zip(BARS, counts(faults), strict=True):
        share = f"{100 * count / whole:.0f} %" if whole else "–"
        verdict = "met" if bar.met(count, whole) else "MISSED"
        yield f"{half}: {bar.words} {count} of {whole} ({share}), bar {100 * bar.share:.0f} %: {verdict}"


def section(rows: list[Row]) -> str:
    """The section, without its marker."""
    machines = sorted({AT_A_TIME.sub("", row["machine"]) for row in rows})
    dates = sorted({row["date"] for row in rows})
    parts = [
        "## Training loops of public packages\n",
        "`benchmarks/strangers` has a short driver for each, with small data; the loop is the package's. Under `heal`, one seed.",
        f"Written by `make strangers` on {' and '.join(dates)}. Measured on: {'; '.join(machines)}.\n",
    ]
    for half, words in HALVES.items():
        if any(row["half"] == half for row in rows):
            parts += [f"{words}\n", table(("package", *_heads(), "healthy runs alarmed"), _lines(half, rows))]
    missed = [*_misses([row for row in rows if row["half"] == "build" and row.get("injected")])]
    if missed:
        parts += ["What is still missed in those for building:\n", table(("package", "fault", "miss"), missed)]
    return "\n".join(parts).rstrip() + "\n"


def with_section(page: str, text: str) -> str:
    """The page with its section replaced, or added."""
    before, _, rest = page.partition(STRANGERS)
    after = rest.partition(END_OF_STRANGERS)[2].lstrip()
    return f"{before.rstrip()}\n\n{STRANGERS}\n\n{text.rstrip()}\n\n{END_OF_STRANGERS}\n" + (f"\n{after}" if after else "")


def _heads() -> list[str]:
    return [f"{bar.words} (bar {100 * bar.share:.0f} %)" for bar in BARS]


def _lines(half: str, rows: list[Row]) -> Iterator[list[str]]:
    chosen = [row for row in rows if row["half"] == half]
    for name in dict.fromkeys(row["training"] for row in chosen):
        mine = [row for row in chosen if row["training"] == name]
        yield [mine[0]["package"], *_cells(mine)]
    yield [f"**all, {half} half**", *_cells(chosen)]


def _cells(rows: list[Row]) -> list[str]:
    controls = [row for row in rows if "fault" not in row]
    alarmed = sum(bool(row["false_alarms"]) for row in controls)
    pairs = [*counts([row for row in rows if "fault" in row]), (alarmed, len(controls))]
    return [f"{count} / {whole}" if whole else "–" for count, whole in pairs]


def _misses(rows: list[Row]) -> Iterator[list[str]]:
    for row in rows:
        name = [row["package"], f"`{row['fault']}`"]
        if row["to_see"] and row["seen"] is None:
            yield [*name, "not seen"]
        elif row["to_explain"] and row["seen"] and not row["cause_right"]:
            yield [*name, f"another cause: {row['cause'] or 'none'}"]
        if row["to_survive"] and not row["survived"]:
            yield [*name, f"not survived: {row['why_not_survived']}"]
