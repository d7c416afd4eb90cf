"""`holdfast serve`: let other machines ask the runs of this one."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import Otlp, RunName, one_of

_LOOPBACK = "127.0.0.1:8080"


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("serve")(serve)


def serve(
    run: RunName = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address to listen on; port 0 picks a free one. (default: 127.0.0.1:8080)"),
    ] = None,
    target: Annotated[
        str | None, typer.Option("-t", "--target", metavar="TARGET", help="Serve only this run. (default: all your live runs)")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the tokens; only you may read it.")] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse eval and set, whatever the token.")] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A name by which browsers reach this server. Repeatable.")
    ] = None,
    otlp: Otlp = None,
    cert: Annotated[Path | None, typer.Option(help="TLS certificate (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(help="TLS key (PEM).")] = None,
    new_token: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Add a new token to FILE, then exit.", show_default=False)
    ] = None,
    token_name: Annotated[str, typer.Option(help="Name for the new token; the journal shows it.")] = "",
) -> None:
    """Let other machines access the runs of this one over HTTP with a token: tables, SQL, stacks, eval, changes.

    On this machine you need no token. `--new-token FILE --read-only` makes a read-only token.
    """
    if new_token is not None:
        _make_token(new_token, token_name, read_only=read_only)
        return
    from holdfast.probe.niceness import be_nice
    from holdfast.probe.serve.stopping import StopSignal
    from holdfast.probe.target import registered_runs, resolve
    from holdfast.web.start import Settings, serving, shown

    named = one_of(run, target)
    chosen = resolve(named) if named else None
    be_nice()
    hosts = tuple(allow_host or ())
    settings = Settings(
        listen=listen or _LOOPBACK, token_file=token_file, read_only=read_only, hosts=hosts, otlp=otlp, cert=cert, key=key
    )
    stop = StopSignal(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    with serving(settings, (lambda: [chosen]) if chosen else registered_runs, say=_say) as server:
        served = chosen.name if chosen else "your live runs"
        only = " (this machine only; --listen HOST:PORT opens it to others)" if listen is None else ""
        print(f"serving {served}; connect with -t {shown(server, settings)}{only}", file=sys.stderr, flush=True)
        stop.wait()


def _make_token(path: Path, name: str, *, read_only: bool) -> None:
    from holdfast.probe.serve.tokens import add_to_file

    token = add_to_file(path, name=name, read_only=read_only)
    may = "may read" if read_only else "may read, run code and change settings"
    print(f"{path} has a new token ({token.name}), which {may}.", file=sys.stderr)
    print(f"  server: holdfast serve --listen HOST:PORT --token-file {path}", file=sys.stderr)
    print(f"  client: HOLDFAST_TOKEN_FILE={path} holdfast query -t HOST:PORT '…', after copying the file there", file=sys.stderr)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
