"""`holdfast mcp`: the tools for coding agents, over stdio."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import NamedTargets

if TYPE_CHECKING:
    from holdfast.signals.run_folder import RunFolder


def register(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("mcp")(mcp)


def mcp(
    target: NamedTargets = None,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="The agent may change a training: set, save, roll back, pause, undo, eval.")
    ] = False,
) -> None:
    """Let a coding agent ask about your runs: an MCP server on stdin and stdout, which the agent starts itself.

    In the settings of the agent: command `holdfast`, argument `mcp`. Over HTTP, `holdfast ui` serves the same tools at /mcp.
    """
    _find_live_runs()
    from holdfast.probe.address import is_server
    from holdfast.probe.target import registered_runs, resolve, runs_here
    from holdfast.web.runs import Runs
    from holdfast.web.tools import mcp_server

    far = tuple(name for name in target or () if is_server(name))
    named = [resolve(name) for name in target or () if name not in far]

    def runs() -> list[RunFolder]:
        return named or [*registered_runs(), *runs_here()]

    mcp_server(Runs(runs, far), allow_actions=allow_actions).run("stdio")


def _find_live_runs() -> None:
    """Agents start their servers without most of the environment: live runs are listed in the folder of the user's session."""
    session = Path(f"/run/user/{os.getuid()}")
    if "XDG_RUNTIME_DIR" not in os.environ and session.is_dir():
        os.environ["XDG_RUNTIME_DIR"] = str(session)
