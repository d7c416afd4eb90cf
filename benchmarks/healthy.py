"""What `--policy heal` does to healthy trainings: nothing. Each runs alone and under Holdfast, from the same seed.

Fails on any action, on any finding above info, and on any bit of the final weights that differs.

    python benchmarks/healthy.py [--only gan] [--seeds 3] [--json] [--write]
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from heal_trainings.trial import Trial, run, write_between
from machine import machine, today
from rich.console import Console
from rich.table import Table

PAGE = Path(__file__).parents[1] / "docs/scoreboard.md"
ZOO = "healthy_trainings/zoo.py"
COLUMNS = ("training", "seed", "seconds alone / watched", "findings", "actions", "weights", "verdict")


@dataclass
class Result:
    """One healthy training, alone and watched."""

    name: str
    seed: int
    alone: Trial
    watched: Trial

    @property
    def same(self) -> bool:
        """Whether every bit of the final weights is the same."""
        return "hash" in self.alone.said and self.alone.said["hash"] == self.watched.said.get("hash")

    @property
    def acted(self) -> list[str]:
        """Every action, done or only asked for."""
        entries = [entry for entry in self.watched.journal if entry["kind"] == "action"]
        return [f"{entry['action']} at {entry['step']} ({entry.get('because')}, {entry.get('state')})" for entry in entries]

    @property
    def verdict(self) -> str:
        """`ok`, or `MISSED`."""
        return "ok" if self.same and not self.acted and not self.watched.findings else "MISSED"

    def cells(self) -> list[str]:
        """The row of the table."""
        findings = [f"{entry['code']} at {entry.get('step')}" for entry in self.watched.findings]
        seconds = f"{self.alone.seconds:.1f} / {self.watched.seconds:.1f}"
        same = "same" if self.same else "DIFFER"
        return [self.name, str(self.seed), seconds, _some(findings), _some(self.acted), same, self.verdict]


def _some(words: list[str], count: int = 3) -> str:
    more = [f"and {len(words) - count} more"] if len(words) > count else []
    return "; ".join([*words[:count], *more]) or "none"


def names() -> list[str]:
    """The trainings of the zoo."""
    sys.path.insert(0, str(Path(__file__).parent / "healthy_trainings"))
    import zoo

    return list(zoo.TRAININGS)


def try_out(name: str, seed: int) -> Result:
    """Run one alone and watched."""
    return Result(name, seed, run(ZOO, name, str(seed)), run(ZOO, name, str(seed), policy="heal"))


def as_table(results: list[Result]) -> Table:
    """What the terminal shows."""
    table = Table(*COLUMNS)
    for result in results:
        table.add_row(*result.cells(), style=None if result.verdict == "ok" else "bold red")
    return table


def as_markdown(results: list[Result], jobs: int) -> str:
    """What the page shows: a sentence, and a row for each that was not left alone."""
    missed = [result.cells() for result in results if result.verdict != "ok"]
    seeds = f"{len({result.seed for result in results})} seed{'s' if len({result.seed for result in results}) > 1 else ''} each"
    rest = f"{len(missed)} were not left alone:" if missed else "no finding, no action, and every bit of the weights the same."
    table = "".join(f"| {' | '.join(row)} |\n" for row in (COLUMNS, ["---"] * len(COLUMNS), *missed)) if missed else ""
    names = len({result.name for result in results})
    return f"Measured on {today()}; {machine(jobs)}.\n{names} trainings, {seeds}: {rest}\n" + (f"\n{table}" if table else "")


def main() -> int:
    """Run the whole zoo, or the ones named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="name of a training; may be given several times")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds, from 0")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time; each wants two cores")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    parser.add_argument("--write", action="store_true", help="put the result into docs/scoreboard.md")
    arguments = parser.parse_args()
    words, results = Console(stderr=True), []
    pairs = [(name, seed) for seed in range(arguments.seeds) for name in arguments.only or names()]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for result in pool.map(lambda pair: try_out(*pair), pairs):
            results.append(result)
            words.print(f"{result.name} {result.seed}: {result.verdict}", highlight=False)
            if arguments.json:
                row = {**dict(zip(COLUMNS, result.cells(), strict=True)), "journal": result.watched.journal}
                print(json.dumps(row, default=str), flush=True)
    if not arguments.json:
        Console(width=None if Console().is_terminal else 160).print(as_table(results))
    if arguments.write:
        write_between(PAGE, "healthy", as_markdown(results, arguments.jobs))
    return 1 if any(result.verdict != "ok" for result in results) else 0


if __name__ == "__main__":
    raise SystemExit(main())
