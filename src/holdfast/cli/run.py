"""`holdfast run`: start a command with Holdfast inside and a supervisor outside.

Read with argparse, not typer: every start of a training waits for this file.
"""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from holdfast.cli.project_settings import with_project
from holdfast.errors import UsageError
from holdfast.inside.policy import POLICIES
from holdfast.signals.tracker_names import read_trackers
from holdfast.supervisor.command import find_command
from holdfast.supervisor.launch import Settings
from holdfast.supervisor.preemption import node_of
from holdfast.supervisor.watching import run_command

_FLAGS = ("--help", "--resume")
_HELP = "holdfast run -h lists the options"
_ABOUT = (
    "Start a training with Holdfast watching it. The command runs as it would without Holdfast: "
    "input, output, signals and exit code are passed through."
)
_POLICY_HELP = (
    "What Holdfast may do: observe (report only), guard (skip bad updates), heal (guard, and repair), "
    "or a file with your own policies."
)


class _Parser(argparse.ArgumentParser):
    """Usage errors are raised like every other error."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.", fix=_HELP)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("holdfast run", usage="holdfast run [OPTIONS] [--] COMMAND...", description=_ABOUT, allow_abbrev=False)
    add = parser.add_argument
    add("--name", help="Name of the run. [default: the script's name and the time]")
    add("--folder", type=Path, default=Path("runs"), help="Folder for runs. [default: runs]")
    add("--policy", default="observe", help=f"{_POLICY_HELP} [default: observe]")
    add(
        "--rule",
        action="append",
        default=[],
        help="Policy for one finding: loss-spike=observe. Repeatable.",
    )
    patience = "Stop after this many evaluations without a better validation metric (heal)."
    add("--patience", type=_whole_number(1), help=patience)
    add("--budget", default="1%", help="How much of each step Holdfast may cost. [default: 1%%]")
    add("--hang-after", metavar="SECONDS", help="Seconds without progress before reporting a hang, or `off`. [default: 10]")
    restarts = "Restarts after a failure or a hang (heal). [default: 3]"
    add("--restarts", type=_whole_number(0), default=3, help=restarts)
    add("--resume-args", metavar="ARGS", help='How the script resumes: "--resume {checkpoint}". Remembered for its later runs.')
    add("--restart-args", metavar="ARGS", help='Extra arguments for a restart: "--workers {workers}".')
    resume = "Continue the run of this name, if there is one; SIGUSR1 and SIGTERM save a checkpoint, then exit with 75."
    add("--resume", action="store_true", help=resume)
    nodes = "Nodes that share the folder of the run; each starts this command (with --resume)."
    add("--nodes", type=_whole_number(1), metavar="N", help=nodes)
    listen = "Let other machines query this run, and nodes without a shared folder join it; see --join."
    add("--listen", metavar="HOST:PORT", help=listen)
    join = "Where the first node listens: this node joins its run without a shared folder."
    add("--join", metavar="HOST:PORT", help=join)
    to = "Send metrics, findings and the report to a tracker: mlflow, tensorboard, trackio or wandb. Repeatable."
    add("--to", action="append", default=[], metavar="TRACKER", help=to)
    notify = "Run a command, or POST to a URL, on a critical finding, on a restart and at the end. Repeatable."
    add("--notify", action="append", default=[], metavar="COMMAND|URL", help=notify)
    return parser


def option_names() -> list[str]:
    """The options, as they are typed."""
    return [word for word in _parser()._option_string_actions if word.startswith("--")]


def default_settings() -> dict[str, object]:
    """What the options are without flags."""
    return vars(_parser().parse_args([]))


def run(argv: Sequence[str]) -> int:
    """Run the command after the options; returns its exit code. Options end at the first word of the command."""
    options, command = split(argv)
    options = with_project(options, option_names()) if not {"-h", "--help"} & set(options) else options
    arguments, unknown = _parser().parse_known_args(options)
    if unknown:
        raise _no_such_option(unknown[0].partition("=")[0], [f"--{name.replace('_', '-')}" for name in vars(arguments)])
    if arguments.patience is not None and arguments.policy in ("observe", "guard"):
        raise UsageError(f"the policy {arguments.policy} never stops a training.", fix="--policy heal --patience 20")
    _check_resume(arguments)
    settings = Settings(
        name=arguments.name,
        folder=arguments.folder,
        policy=read_policy(arguments.policy),
        rules=dict(read_rule(text) for text in arguments.rule),
        patience=arguments.patience,
        budget=parse_budget(arguments.budget),
        hang_after=read_hang_after(arguments.hang_after),
        restarts=arguments.restarts,
        resume_args=read_template(arguments.resume_args),
        restart_args=read_template(arguments.restart_args),
        resume=arguments.resume,
        nodes=arguments.nodes or 1,
        node=node_of(os.environ) if (arguments.nodes or 1) > 1 else 0,
        join=arguments.join,
        to=read_trackers(arguments.to),
        notify=tuple(arguments.notify),
    )
    if arguments.listen is not None:
        os.environ["HOLDFAST_LISTEN"] = arguments.listen
    return run_command(find_command(command), settings)


def _check_resume(arguments: argparse.Namespace) -> None:
    if arguments.nodes is not None and not arguments.resume:
        raise UsageError("--nodes needs --resume: all nodes use the run of one name.", fix="--resume --name my-run --nodes 2")
    if arguments.join is not None and (arguments.nodes or 1) < 2:
        raise UsageError("--join needs --nodes: the first node starts with --listen.", fix="--join node0:8080 --nodes 2")
    if not arguments.resume:
        return
    if arguments.name is None:
        raise UsageError("--resume needs the name of the run.", fix="--resume --name my-run")
    if arguments.policy in ("observe", "guard"):
        fix = "--policy heal"
        raise UsageError(f"the policy {arguments.policy} saves no checkpoint to resume from.", fix=fix)


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """The options of `run` and the command. Unlike in argparse, a value may begin with a dash: `--resume-args --resume`."""
    options, rest = list[str](), list(argv)
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        takes_next = word.startswith("--") and word not in _FLAGS and "=" not in word and rest
        options.append(f"{word}={rest.pop(0)}" if takes_next else word)
    return options, rest[1:] if rest[:1] == ["--"] else rest


def _no_such_option(name: str, options: Sequence[str]) -> UsageError:
    near = difflib.get_close_matches(name, options, n=1)
    return UsageError(f"no such option: {name}.", fix=f"did you mean {near[0]}?" if near else _HELP)


def _whole_number(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least {least}")
        return int(text)

    return read


def parse_budget(text: str) -> float:
    """`1%` or `0.01`, as a share of the step."""
    try:
        share = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UsageError(f"{text!r} is not a budget.", fix="give a part of the step, such as --budget 1%")
    return round(share, 9)


def read_hang_after(text: str | None) -> str | None:
    """Seconds as a number, or `off`."""
    if text is None or text == "off":
        return text
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e7:
        raise UsageError(f"{text!r} is not a time.", fix="give seconds, such as --hang-after 60, or --hang-after off")
    return f"{seconds:g}"


def read_template(text: str | None) -> str | None:
    """Words with names in braces; a name that is not known is an error."""
    if text is not None:
        from holdfast.supervisor.resume import names_in

        names_in(text)
    return text


def read_policy(name: str) -> str:
    """One of the three, or the absolute path of a file with policies of the user's own."""
    if name in POLICIES:
        return name
    if name.endswith(".py"):
        if Path(name).is_file():
            return str(Path(name).absolute())
        raise UsageError(f"there is no file {name}.", fix="name a Python file that defines `policies = [...]`")
    close = difflib.get_close_matches(name, POLICIES, n=1)
    raise UsageError(f"there is no policy {name!r}.", fix=f"--policy {close[0] if close else 'observe, guard or heal'}")


def read_rule(text: str) -> tuple[str, str]:
    """`loss-spike=observe`: another policy for one finding."""
    code, _, name = text.partition("=")
    if name not in POLICIES or not code:
        raise UsageError(f"{text!r} is not a rule.", fix="name a finding and a policy, such as --rule loss-spike=observe")
    return code, name
