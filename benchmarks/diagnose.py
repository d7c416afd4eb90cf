"""What `holdfast diagnose` says of faulty trainings, and of healthy ones: each fault is found, with its cause first.

Each training runs under `holdfast run`. A fault counts as found when one of its findings is told, and after as many steps as
the first of them says; a healthy training must have no finding above a remark.

    python benchmarks/diagnose.py [--only leak] [--healthy] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent
FAULTY, HEALTHY = "faulty_trainings/zoo.py", "healthy_trainings/zoo.py"
COLUMNS = ("training", "findings", "found after", "first cause", "verdict")


@dataclass
class Result:
    """One training and what was said of it; `wanted` is nothing where it is healthy."""

    name: str
    said: dict[str, Any]
    wanted: tuple[tuple[str, ...], tuple[str, ...]] | None

    @property
    def found(self) -> dict[str, Any] | None:
        """The first finding that is right."""
        right = [one for one in self.said["findings"] if self.wanted and one["code"] in self.wanted[0]]
        return min(right, key=lambda one: one["step"], default=None)

    @property
    def cause(self) -> str:
        """The first cause, or nothing."""
        return self.said["diagnoses"][0]["cause"] if self.said["diagnoses"] else ""

    @property
    def verdict(self) -> str:
        """`ok`, or `MISSED`."""
        if self.wanted is None:
            return "ok" if all(one["severity"] == "info" for one in self.said["findings"]) else "MISSED"
        return "ok" if self.found and (not self.wanted[1] or self.cause in self.wanted[1]) else "MISSED"

    def cells(self) -> list[str]:
        """The row of the table."""
        findings = [f"{one['code']} ({one['severity']})" for one in self.said["findings"]]
        after = f"{self.found['step'] + 1} of {self.said['steps'] + 1} steps" if self.found else "–"
        return [self.name, ", ".join(findings) or "–", after, self.cause or "–", self.verdict]


def diagnosed(script: str, name: str, folder: Path) -> dict[str, Any]:
    """Run a training to its end under Holdfast, and ask what is wrong with it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HOLDFAST_", "PYTHONPATH"))}
    single = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "XDG_RUNTIME_DIR": str(folder)}
    holdfast = [sys.executable, "-m", "holdfast.cli.main"]
    how: dict[str, Any] = {"cwd": folder, "env": {**kept, **single}, "capture_output": True, "text": True, "check": False}
    training = [sys.executable, str(FOLDER / script), name]
    fault, _, of_the_guard = name.partition("/")
    if of_the_guard:
        training = [sys.executable, str(FOLDER / "heal_trainings" / f"{of_the_guard}.py")]
        how["env"] |= {"FAULT": fault, "SEED": "0"}
    policy = ["--policy", "guard"] if of_the_guard else []
    done = subprocess.run(
        [*holdfast, "run", "--folder", str(folder), "--name", fault, *policy, "--", *training], timeout=600, **how
    )
    said = subprocess.run([*holdfast, "diagnose", "--json", str(folder / fault)], timeout=120, **how)
    if said.returncode not in (0, 1):
        raise RuntimeError(f"{name}: {done.stderr[-1000:]}\n{said.stderr[-1000:]}")
    run: dict[str, Any] = json.loads(said.stdout)["runs"][0]
    return run


def main() -> int:
    """Run all faults, or the ones named, or the healthy trainings."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", help="name of a training; may be given several times")
    parser.add_argument("--healthy", action="store_true", help="the healthy trainings instead")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    arguments = parser.parse_args()
    sys.path.insert(0, str(FOLDER / ("healthy_trainings" if arguments.healthy else "faulty_trainings")))
    import zoo

    wanted, names = {}, list(zoo.TRAININGS if arguments.healthy else zoo.FAULTS)
    if not arguments.healthy:
        import expected

        wanted = {**expected.EXPECTED, **expected.OF_THE_GUARD}
        names += expected.OF_THE_GUARD
    results = []
    for name in arguments.only or names:
        with tempfile.TemporaryDirectory() as folder:
            said = diagnosed(HEALTHY if arguments.healthy else FAULTY, name, Path(folder))
        results.append(Result(name, said, wanted.get(name)))
        Console(stderr=True).print(f"{name}: {results[-1].verdict}", highlight=False)
        if arguments.json:
            print(json.dumps(dict(zip(COLUMNS, results[-1].cells(), strict=True))), flush=True)
    if not arguments.json:
        _show(results)
    return 1 if any(result.verdict != "ok" for result in results) else 0


def _show(results: list[Result]) -> None:
    table = Table(*COLUMNS)
    for result in results:
        table.add_row(*result.cells(), style=None if result.verdict == "ok" else "bold red")
    Console(width=None if Console().is_terminal else 160).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
