"""`holdfast ui`: the page in a browser."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import NamedTargets, Otlp

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.signals.run_folder import RunFolder

_LOOPBACK = "127.0.0.1:8090"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("ui")(ui)


def ui(
    target: NamedTargets = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 picks a free one.")] = _LOOPBACK,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="The page may change a training: set, save, roll back, pause, undo.")
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the page of one run to a file that needs no server, then exit."),
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
    token_file: Annotated[Path | None, typer.Option(help="File with the tokens of others; only you may read it.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A name by which browsers reach this server. Repeatable.")
    ] = None,
    otlp: Otlp = None,
    cert: Annotated[Path | None, typer.Option(help="TLS certificate (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(help="TLS key (PEM).")] = None,
) -> None:
    """Show your runs in a browser: live curves, findings, what was done about them, and how runs compare.

    Lists the live runs of this machine, the finished ones in ./runs, and those of every server named with -t HOST:PORT. The link
    that is printed holds a token: with it the page is yours, without it nobody sees anything. Also serves /metrics for Prometheus
    and /mcp for coding agents.
    """
    from holdfast.probe.address import is_server
    from holdfast.probe.niceness import be_nice
    from holdfast.probe.serve.stopping import StopSignal
    from holdfast.probe.target import registered_runs, resolve, runs_here
    from holdfast.web.start import Settings, link, serving

    far = tuple(name for name in target or () if is_server(name))
    named = [resolve(name) for name in target or () if name not in far]

    if export is not None:
        _write(export, named[0] if named else resolve(None))
        return

    def runs() -> list[RunFolder]:
        return named or [*registered_runs(), *runs_here()]

    be_nice()
    settings = Settings(
        listen=listen,
        token_file=token_file,
        cert=cert,
        key=key,
        far=far,
        hosts=tuple(allow_host or ()),
        otlp=otlp,
        allow_actions=allow_actions,
    )
    stop = StopSignal(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with serving(settings, runs, say=_say) as server:
        address = link(server, settings)
        print(f"open {address}", file=sys.stderr, flush=True)
        with _opened(address, server.port) if open_browser else contextlib.nullcontext():
            stop.wait()


def _write(path: Path, run: RunFolder) -> None:
    from holdfast.errors import StorageError
    from holdfast.web.export import exported

    try:
        path.write_text(exported(run), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}.", fix="name another file") from error
    print(f"written: {path}", file=sys.stderr)


@contextlib.contextmanager
def _opened(address: str, port: int) -> Iterator[None]:
    """Open the page by a file that only this user can read: the command line of a browser is seen by everybody."""
    import webbrowser

    from holdfast.signals.registry import runtime_folder

    path = runtime_folder() / f"ui-{port}.html"
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
            file.write(f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={address}">\n')
        if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or sys.platform == "darwin":
            webbrowser.open(path.as_uri())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
