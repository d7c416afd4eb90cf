"""`holdfast sync`: send a recorded run to a tracker, or what the tracker did not take while the run lived."""

from __future__ import annotations

import contextlib
import io
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.errors import say_error
from holdfast.cli.options import AsJson, RunName, Target, one_of
from holdfast.errors import CannotSend, HoldfastError, TargetError, UsageError

if TYPE_CHECKING:
    from holdfast.signals.run_folder import RunFolder

_OTHER_SECONDS = 60.0  # the run's own sender has as long to finish


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("sync")(sync)


def sync(
    run: RunName = None,
    target: Target = None,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", metavar="TRACKER", help="mlflow, tensorboard, trackio or wandb. Repeatable.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Send a run to a tracker: what was not sent while it ran, or all of it.

    Without --to: the trackers that the run was started with. What has been sent is not sent again.
    """
    from holdfast.probe.target import resolve
    from holdfast.signals.tracker_names import SENT, TRACKERS, read_trackers

    folder = resolve(one_of(run, target))
    earlier = [*(folder.info().get("to") or ()), *(path.stem for path in sorted((folder.path / SENT).glob("*.json")))]
    names = read_trackers(to or [name for name in earlier if name in TRACKERS])
    if not names:
        raise UsageError(
            f"the run {folder.name} was started without a tracker.", fix=f"holdfast sync {folder.target} --to tensorboard"
        )
    answers, errors = [], []
    for name in names:
        try:
            answers.append(_sync(folder, name))
        except HoldfastError as error:
            errors.append(error)
        else:
            _say(answers[-1], as_json=as_json)
    if as_json:
        print(json.dumps({"run": folder.name, "sent": answers}, ensure_ascii=False))
    for each in errors[:-1]:
        say_error(each)
    if errors:
        raise errors[-1]


def _sync(run: RunFolder, name: str) -> dict[str, Any]:
    from holdfast.integrations.sending import Cursor, Sender, kind_of
    from holdfast.probe.state import read_state

    cursor, alive = Cursor(run, name), read_state(run).alive
    with cursor.held(0.0 if alive else _OTHER_SECONDS) as ours:
        if not ours:
            fix = "nothing is to be done" if alive else f"holdfast sync {run.target} --to {name}, later"
            raise TargetError(f"{run.name} is being sent to {name} by another process.", fix=fix)
        sender = Sender(run, kind_of(name), cursor)
        before = dict(cursor.content)
        try:
            with contextlib.redirect_stdout(io.StringIO()):  # some trackers print, also when they are let go
                sender.send()
                if not alive:
                    sender.finish()
                sender.close()
        except Exception as error:  # noqa: BLE001 - a tracker can fail in many ways
            fix = (
                error.fix if isinstance(error, HoldfastError) else f"holdfast sync {run.target} --to {name} sends the rest later"
            )
            raise CannotSend(f"not everything was sent to {name}: {sender.failed(error)}", fix=fix) from None
    new = {key: cursor.content[key] - before[key] for key in ("values", "notices")}
    return {
        "tracker": name,
        **new,
        "report": before.get("finished") != cursor.content.get("finished"),
        "at": cursor.content.get("address"),
    }


def _say(answer: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        return
    from holdfast.units import count

    parts = [count(answer["values"], "value"), count(answer["notices"], "finding"), *(["the report"] if answer["report"] else [])]
    what = (
        f"{', '.join(parts[:-1])} and {parts[-1]} sent"
        if answer["values"] or answer["notices"] or answer["report"]
        else "nothing left to send"
    )
    print(f"{answer['tracker']}: {what} ({answer['at']})")
