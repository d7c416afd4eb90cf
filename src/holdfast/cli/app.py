"""The verbs as typer reads them. They import what they need when they run, so that `holdfast --help` answers at once."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from holdfast.cli import (
    attach,
    backtrace,
    checkpoints,
    compare,
    continue_,
    demo,
    diagnose,
    doctor,
    drill,
    explain,
    export,
    journal,
    launch,
    mcp,
    pause,
    plan,
    ps,
    query,
    repl,
    replay,
    repro,
    resume,
    rollback,
    save,
    serve,
    stats,
    sync,
    tables,
    tail,
    train,
    ui,
    undo,
    validate,
    visualize,
)
from holdfast.cli import eval as eval_verb
from holdfast.cli import set as set_verb
from holdfast.cli.errors import in_words
from holdfast.cli.run import option_names, run, split
from holdfast.inside.policy import POLICIES
from holdfast.signals.tracker_names import TRACKERS
from holdfast.version import __version__


class Verbs(TyperGroup):
    """The group of all verbs; what a verb raises becomes words and an exit code here."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        return in_words(lambda: super(Verbs, self).invoke(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before the verb."""
        rest: list[str] = in_words(lambda: super(Verbs, self).parse_args(ctx, args))
        return rest


class RunCommand(TyperCommand):
    """`run`, whose options typer does not read: a shell completes them from the parser's list, and then files."""

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Option names, or the values of the option before."""
        try:
            from typer._click.shell_completion import CompletionItem
        except ImportError:  # typer before 0.26 brings no click of its own
            from click.shell_completion import CompletionItem  # type: ignore[assignment]
        options, command = split(ctx.args)
        values = {"--policy": POLICIES, "--to": TRACKERS}.get((options or [""])[-1], option_names())
        return [CompletionItem(value) for value in values if value.startswith(incomplete) and not command]


def _version(requested: bool) -> None:
    if requested:
        print(f"holdfast {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="holdfast",
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def holdfast(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)] = False,
) -> None:
    """Keeps PyTorch training alive: watches a run, reports what is wrong and why, and repairs it."""


@app.command(
    "run",
    cls=RunCommand,
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)
def run_verb(context: typer.Context) -> None:
    """Start a training with Holdfast watching it."""
    raise typer.Exit(run(context.args))


_BEFORE = (doctor, drill, plan, repro, stats, validate, visualize)  # before a run
_DURING = (ps, tail, backtrace, journal, diagnose, compare, explain, tables, query, replay, checkpoints, demo)
_OUTWARDS = (serve, ui, mcp, sync)
_INSIDE = (eval_verb, repl, set_verb, undo, save, rollback, pause, continue_, attach)
_TRAINING = (train, resume, export, launch)
for _verb in (*_DURING, *_OUTWARDS, *_INSIDE, *_BEFORE, *_TRAINING):
    _verb.register(app)
for _typer in (app, *(_group.typer_instance for _group in app.registered_groups)):
    for _command in _typer.registered_commands if _typer is not None else ():
        _paragraphs = (inspect.getdoc(_command.callback) or "").split("\n\n")
        _command.help = "\n\n".join(_paragraph.replace("\n", " ") for _paragraph in _paragraphs)
