"""Drills in the training loops of public packages: what Holdfast detects, explains and survives in a loop that nobody here wrote.

Each file of `benchmarks/strangers` is a thin driver around the loop of one package, with small real data. Half of them are for
building: look at what was missed, and fix Holdfast. The others are only scored: nothing may be chosen by looking at those.

    make strangers                                      all whose packages are installed
    make strangers ARGS="--half build"                  the half to build with
    make strangers ARGS="--only skorch_digits --faults nan-batch,lr-x100"
    make strangers ARGS="--folder ~/trainings"          any folder of scripts; all of them count as seen
    make strangers ARGS="--json a.jsonl --half score"   keep every score, and then
    make strangers ARGS="--write a.jsonl b.jsonl"       write the tables of both halves into docs/scoreboard.md

A driver whose package is missing is reported with the command that installs it. Fails where a bar is missed in the scored half.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machine import machine, today

sys.path.insert(0, str(Path(__file__).parent / "drill_trainings"))
from strangers_table import BARS, Row, counts, half_told, newest, section, with_section

PAGE = Path(__file__).parents[1] / "docs/scoreboard.md"
DRIVERS = Path(__file__).parent / "strangers"


@dataclass(frozen=True)
class Stranger:
    """One driver: its file, the half it belongs to, the package whose loop it runs, and what it is called with."""

    path: Path
    half: str
    package: str
    arguments: tuple[str, ...]
    pip: str  # its name there, where that differs

    @property
    def name(self) -> str:
        return self.path.stem


def strangers(folder: Path) -> list[Stranger]:
    """The drivers of a folder; a script that says nothing of itself belongs to the half to build with."""
    found = []
    for path in sorted(folder.glob("*.py")):
        says = {
            target.id: node.value.value
            for node in _statements(path)
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        package, arguments = str(says.get("PACKAGE", "torch")), tuple(str(says.get("ARGUMENTS", "")).split())
        found.append(Stranger(path, str(says.get("HALF", "build")), package, arguments, str(says.get("PIP", package))))
    return found


def _statements(path: Path) -> list[ast.stmt]:
    try:
        return ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError):  # the drill will say what is wrong with it
        return []


def is_installed(stranger: Stranger, python: str) -> bool:
    """Whether the package can be imported by the Python that trains."""
    name = stranger.package.replace("-", "_")
    looks = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    return subprocess.run([python, "-c", looks], check=False).returncode == 0


def drill(stranger: Stranger, arguments: argparse.Namespace) -> dict[str, Any] | str:
    """The answer of `holdfast drill --json`, or why there is none. Runs that it says to look at stay where they are."""
    folder = tempfile.mkdtemp(prefix=f"{stranger.name}-")
    command = [sys.executable, "-m", "holdfast", "drill", "--json", "--policy", "heal", "--faults", arguments.faults]
    command += ["--controls", str(arguments.controls), "--jobs", str(arguments.jobs), "--folder", folder]
    command += ["--", arguments.python, str(stranger.path), *stranger.arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        return f"exit {done.returncode}"


def told(name: str, rows: list[Row]) -> None:
    """The line of one stranger, and what was missed."""
    faults, controls = [row for row in rows if "fault" in row], [row for row in rows if "fault" not in row]
    parts = [f"{bar.words} {count} of {whole}" for bar, (count, whole) in zip(BARS, counts(faults), strict=True)]
    alarmed = sum(bool(row["false_alarms"]) for row in controls)
    print(f"{name:24s} {', '.join(parts)}; false alarms in {alarmed} of {len(controls)} healthy runs")
    for one in faults:
        if one["injected"] and one["to_see"] and one["seen"] is None:
            print(f"    not seen: {one['fault']}")
        elif one["to_explain"] and not one["cause_right"]:
            print(f"    wrong cause: {one['fault']}: {one['cause']}")
        if one["injected"] and one["to_survive"] and not one["survived"]:
            print(f"    not survived: {one['fault']}: {one['why_not_survived']}")


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("build", "score"))
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--faults", default="all")
    parser.add_argument("--controls", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--folder", type=Path, default=DRIVERS)
    parser.add_argument("--python", default=sys.executable, help="the Python that has the packages")
    parser.add_argument("--json", type=Path, help="file for every score, one line each")
    parser.add_argument("--write", type=Path, nargs="+", metavar="JSON", help="run nothing; the tables from these files")
    return parser


def scores(chosen: list[Stranger], arguments: argparse.Namespace) -> list[Row]:
    """Drill each, and tell; each score also goes to the file of `--json` as soon as it is known."""
    rows: list[Row] = []
    about = {"machine": machine(arguments.jobs), "date": today()}
    for one in chosen:
        if not is_installed(one, arguments.python):
            print(f"{one.name:24s} not run: pip install {one.pip}")
            continue
        answer = drill(one, arguments)
        if isinstance(answer, str):
            print(f"{one.name:24s} could not be drilled: {answer}")
            continue
        new = [{"half": one.half, "package": one.package, **about, **row} for row in (*answer["controls"], *answer["faults"])]
        told(one.name, new)
        rows += new
        if arguments.json is not None:
            with arguments.json.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in new)
    return rows


def main() -> int:
    parser = options()
    arguments = parser.parse_args()
    if arguments.write:
        lines = (line for path in arguments.write for line in path.read_text(encoding="utf-8").splitlines())
        rows = newest([json.loads(line) for line in lines])
        PAGE.write_text(with_section(PAGE.read_text(encoding="utf-8"), section(rows)), encoding="utf-8")
        print(f"written: {PAGE.name}")
    else:
        chosen = [one for one in strangers(arguments.folder) if arguments.half in (None, one.half)]
        names = ", ".join(one.name for one in chosen) or "none"
        chosen = [one for one in chosen if not arguments.only or one.name in arguments.only]
        if not chosen:
            parser.error(f"there is no such training in {arguments.folder}; there are: {names}")
        print(f"{today()}, {machine(arguments.jobs)}")
        rows = scores(chosen, arguments)
    for half in ("build", "score"):
        for line in half_told(half, rows):
            print(line)
    scored = [row for row in rows if row["half"] == "score" and "fault" in row]
    return 0 if all(bar.met(*pair) for bar, pair in zip(BARS, counts(scored), strict=True)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
