"""How a script resumes after a crash: `holdfast doctor -- python train.py` reports it without running the script."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.environment.check import Check, Fix, Verdict, note, ok, problem

if TYPE_CHECKING:
    from holdfast.environment.machine import Machine

_RUNS = Path("runs")  # where `holdfast run` writes without --folder
_SECONDS = 60.0  # every byte of a checkpoint is verified


def resuming(command: Sequence[str]) -> Check:
    """The check for one command."""

    def ask(_machine: Machine) -> Verdict:
        return how_it_resumes(command)

    return Check(name="resuming", asks="how the script resumes", ask=ask, seconds=_SECONDS)


def how_it_resumes(command: Sequence[str]) -> Verdict:
    """The flag, the checkpoint that a restart would take, and the command that confirms it; nothing to confirm if it was."""
    from holdfast.recovery.choosing.resume_flag import resume_template
    from holdfast.signals.lineage import script_place
    from holdfast.supervisor.facts import facts_at_start
    from holdfast.supervisor.resume import confirmed

    facts = facts_at_start(command, os.environ)
    script = Path(command[script_place(command) or 0])
    if script.suffix == ".py" and not script.is_file():
        return problem(f"there is no file {script}", Fix("correct the path of the script"))
    confirmed_template, template = confirmed(_RUNS, facts), resume_template(command, Path.cwd())
    if confirmed_template:
        return ok(
            f"{script.name} resumes with `{confirmed_template}`, as confirmed; {_taken(facts)}", resume_args=confirmed_template
        )
    if template is None:
        text = f"{script.name} has no known resume flag: `heal` fast-forwards it; known trainers resume by themselves"
        return note(text, Fix('if it has a flag, add it once to `holdfast run`: --resume-args "--FLAG {checkpoint}"'))
    confirm = f"holdfast run --policy heal --resume-args {shlex.quote(template)} -- {shlex.join(command)}"
    fix = Fix("confirm that once; later runs of the script then need only --policy heal", (confirm,))
    return note(f"{script.name} resumes with `{template}`; {_taken(facts)}", fix, resume_args=template)


def _taken(facts: Mapping[str, Any]) -> str:
    """Which checkpoint a restart takes; with an example where the script was run before."""
    from holdfast.supervisor.resume import find_origin, runs_of

    sentence = "a restart takes the newest clean checkpoint of its run"
    for run in runs_of(_RUNS, facts)[:1]:
        if (origin := find_origin(run)).path is not None:
            at = f", step {origin.step:,}" if origin.step is not None else ""
            return f"{sentence} ({origin.path.name} in run {run.name}{at})"
    return sentence
