"""The same faults as others see them: Lightning, Hugging Face's Trainer, autograd's anomaly mode, a check by hand, a log doctor.

    make peers                                      all; writes a table of docs/scoreboard.md
    make peers ARGS="--only-fault nan-batch"        a part; the page is printed
    make peers ARGS="--runmedic PATH"               where `runmedic` is, if it is not on the path
    make peers ARGS="--costs-only"                  what each costs, and no fault

Every peer trains the same network on the same digits from the same seed. The faults are injected by the drills' injector, without
Holdfast; Holdfast has two columns of its own. What they cost is measured in runs without a fault that take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peer_trainings"))
from heal_trainings.trial import write_between
from machine import machine, today
from watchers import FAULTS, WATCHERS, Outcome, Watcher, done, names_cause, said_in

from holdfast.drills.faults import find
from holdfast.drills.plan import Planned
from holdfast.drills.score import score
from holdfast.drills.selection import draw_step
from holdfast.drills.trial import Training, Trial, run_trial

PAGE = Path(__file__).parents[1] / "docs/scoreboard.md"
SCRIPTS = Path(__file__).parent / "peer_trainings"
SECONDS, ROUNDS, NEAR = 60.0, 7, 0.02
_ALONE = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
_QUICK = {**_ALONE, "HOLDFAST_BACK_OFF": "0.2", "HOLDFAST_SAVE_EVERY": "0.3"}


def training(watcher: Watcher, **environment: str) -> Training:
    """How the training of a watcher is started."""
    script, *arguments = watcher.script
    return Training(
        command=(sys.executable, str(SCRIPTS / script), *arguments), name=watcher.name.replace(" ", "-").replace(",", ""),
        environment={**_QUICK, **environment}, metric="accuracy", hang_after="4",
    )  # fmt: skip


def run(watcher: Watcher, faults: tuple[Planned, ...], folder: Path, seed: int = 0, **environment: str) -> Trial:
    """One run, in a folder of its own."""
    place = Path(tempfile.mkdtemp(dir=folder))
    seconds = SECONDS if watcher.policy is None else 4 * SECONDS
    return run_trial(training(watcher, **environment), faults, policy=watcher.policy, seed=seed, folder=place, seconds=seconds)


# What each sees


def outcome(watcher: Watcher, code: str, control: Trial, folder: Path, runmedic: str | None) -> Outcome:
    """Put a fault into the training of a watcher, and see what comes of it."""
    step = 0 if find(code).from_start else draw_step(code, 0, control.length)
    trial = run(watcher, (Planned(code=code, step=step),), folder)
    scored = score(trial, control)
    near = trial.metric is not None and control.metric is not None and trial.metric >= control.metric - NEAR
    complete = trial.steps >= control.steps
    ended_well = trial.exit_code == 0 and complete and near
    common = {"metric": trial.metric, "ended_well": ended_well, "seconds": trial.seconds, "watcher": watcher.name, "fault": code}
    if not scored.injected:
        return Outcome(happened=False, why_not=scored.why_not, **common)
    if watcher.policy is not None:
        said = f"{scored.seen}: {scored.cause}" if scored.seen else ""
        did = "continues" if trial.exit_code == 0 else "dies"
        return Outcome(happened=True, said=said, cause=scored.cause_right, did=", ".join(scored.actions) or did, **common)
    said = doctor(runmedic, trial) if watcher.name == "runmedic" else said_in(watcher, trial.output)
    did = done(watcher, hangs=bool(trial.ended), exit_code=trial.exit_code, complete=complete, said=said)
    return Outcome(happened=True, said=said, cause=names_cause(code, said), did=did, **common)


def doctor(runmedic: str | None, trial: Trial) -> str:
    """What the log doctor finds in what was printed, remarks aside: the first problem with the first cause, and the others."""
    if runmedic is None or trial.folder is None:
        return ""
    log = trial.folder / "log.txt"
    log.write_text(trial.output, encoding="utf-8")
    told = subprocess.run([runmedic, "diagnose", "--json", str(log)], capture_output=True, text=True, timeout=60, check=False)
    try:
        runs = json.loads(told.stdout)
    except ValueError:
        return ""
    found = [one for run in runs for one in run["findings"] if one["severity"] != "info"]
    first = [f"{found[0]['title']}: {_short((found[0]['likely_causes'] or [''])[0])}"] if found else []
    return "; ".join([*first, *(one["title"] for one in found[1:])])


def _short(text: str, most: int = 110) -> str:
    return text if len(text) <= most else text[: most - 1].rsplit(" ", 1)[0] + " …"


# What each costs


def costs(watchers: Sequence[Watcher], folder: Path, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of a step, a number for each round; in a round all take turns."""
    found: dict[str, list[float]] = {watcher.name: [] for watcher in watchers}
    for number in range(rounds):
        for watcher in watchers if number % 2 == 0 else watchers[::-1]:
            trial = run(watcher, (), folder, PACE="0")
            line = next((line for line in reversed(trial.output.splitlines()) if line.startswith('{"accuracy"')), "{}")
            if json.loads(line).get("step_ms"):
                found[watcher.name].append(json.loads(line)["step_ms"])
        print(f"round {number + 1} of {rounds}: {json.dumps({name: times[-1:] for name, times in found.items()})}", flush=True)
    return found


def ratio(watcher: Watcher, found: dict[str, list[float]]) -> str:
    """The median over rounds of its step against that of its base in the same round."""
    mine, base = found.get(watcher.name, []), found.get(watcher.base, [])
    if not watcher.base:
        return f"{statistics.median(mine):.2f} ms" if mine else "–"
    ratios = [one / other for one, other in zip(mine, base, strict=False)]
    return f"{statistics.median(ratios):.2f}×" if ratios else "–"


# The page


def summary(outcomes: list[Outcome], alarms: dict[str, str], found: dict[str, list[float]], without: str) -> str:
    """The table of one machine."""
    watchers = _watchers_of(outcomes)
    head = ("", "setting", "saw", "named the cause", "ended well", "of a healthy run it says", "a step")
    table = _table(head, (_row(watcher, outcomes, alarms, found) for watcher in watchers))
    rounds = max(map(len, found.values()), default=0)
    return f"Measured on {machine_and_versions()}; {rounds} rounds of each for the cost of a step.{without}\n\n{table}"


def details(outcomes: list[Outcome]) -> str:
    """A table for each fault."""
    watchers = _watchers_of(outcomes)
    tables = (_of_fault(code, outcomes, watchers) for code in dict.fromkeys(one.fault for one in outcomes))
    return f"Measured on {machine_and_versions()}.\n\n" + "\n".join(tables)


def _watchers_of(outcomes: list[Outcome]) -> list[Watcher]:
    names = {one.watcher for one in outcomes}
    return [watcher for watcher in WATCHERS if watcher.name in names]


def _row(watcher: Watcher, outcomes: list[Outcome], alarms: dict[str, str], found: dict[str, list[float]]) -> list[str]:
    mine = [one for one in outcomes if one.watcher == watcher.name and one.happened]
    columns = zip(*((one.said, one.cause, one.ended_well) for one in mine), strict=True)
    counts = [f"{sum(map(bool, column))} / {len(mine)}" for column in columns]
    return [
        f"**{watcher.name}**",
        watcher.setting,
        *(counts or ["–"] * 3),
        alarms.get(watcher.name) or "nothing",
        ratio(watcher, found),
    ]


def _of_fault(code: str, outcomes: list[Outcome], watchers: list[Watcher]) -> str:
    rows = []
    for watcher in watchers:
        one = next((one for one in outcomes if (one.watcher, one.fault) == (watcher.name, code)), None)
        if one is None:
            continue
        if not one.happened:
            rows.append([watcher.name, f"cannot happen here: {one.why_not}", "", ""])
            continue
        said = f"{one.said} {'✓' if one.cause else ''}".strip() or "nothing"
        rows.append([watcher.name, said, one.did, "–" if one.metric is None else f"{one.metric:.3f}"])
    return f"### `{code}`: {find(code).description}\n\n" + _table(("", "said", "the run", "accuracy"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |\n" for line in lines)


def machine_and_versions() -> str:
    """The date, the machine without its name, and the versions of what took part."""
    return f"{today()}; {machine(1)}, {', '.join(_versions())}"


def _versions() -> list[str]:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for name in ("lightning", "pytorch-lightning", "transformers"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found


def main() -> int:
    """Run all, or what was named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only-fault", action="append", default=[])
    parser.add_argument("--only-peer", action="append", default=[])
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the runs that measure the cost")
    parser.add_argument("--runmedic", default=shutil.which("runmedic"))
    parser.add_argument("--costs-only", action="store_true", help="what each costs, and no fault")
    given = parser.parse_args()
    skipped = [] if given.runmedic else ["runmedic"]
    watchers = [one for one in WATCHERS if one.name not in skipped and (not given.only_peer or one.name in given.only_peer)]
    codes = given.only_fault or FAULTS
    without = "" if given.runmedic else " `runmedic` was not installed."
    with tempfile.TemporaryDirectory(prefix="holdfast-peers-") as place:
        folder = Path(place)
        if given.costs_only:
            found = costs([one for one in watchers if one.name != "runmedic"], folder, given.rounds)
            print(machine_and_versions(), *(f"{one.name:<28}{ratio(one, found)}" for one in watchers), sep="\n")
            return 0
        with ThreadPoolExecutor(given.jobs) as pool:
            controls = dict(zip(watchers, pool.map(lambda one: run(one, (), folder), watchers), strict=True))
            alarms = {one.name: said_of_healthy(one, controls[one], given.runmedic) for one in watchers}
            pairs = [(one, code) for code in codes for one in watchers]
            outcomes = list(pool.map(lambda pair: told(outcome(*pair, controls[pair[0]], folder, given.runmedic)), pairs))
        found = costs([one for one in watchers if one.name != "runmedic"], folder, given.rounds)
    if given.only_fault or given.only_peer:
        print(summary(outcomes, alarms, found, without), details(outcomes), sep="\n")
    else:
        write_between(PAGE, "summary", summary(outcomes, alarms, found, without))
        print(details(outcomes))
    return 0


def said_of_healthy(watcher: Watcher, control: Trial, runmedic: str | None) -> str:
    """What a watcher says of a run without a fault."""
    if control.exit_code != 0:
        return said_in(watcher, control.output) or f"it fails: {control.output[-200:]}"
    if watcher.policy is not None:
        return ", ".join(one.code for one in control.outcome.raised if one.severity != "info")
    return doctor(runmedic, control) if watcher.name == "runmedic" else said_in(watcher, control.output)


def told(one: Outcome) -> Outcome:
    """Print it in a line as it comes."""
    print(f"{one.fault:<22}{one.watcher:<26}{(one.said or one.why_not)[:60]:<62}{one.did:<16}{one.metric}", flush=True)
    return one


if __name__ == "__main__":
    raise SystemExit(main())
