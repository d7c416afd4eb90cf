"""`/mcp`: the tools for coding agents over HTTP. They are loaded when somebody asks for the first time: most servers never do."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import Receive, Scope, Send

from holdfast.errors import HoldfastError
from holdfast.probe.serve.reply import Denied
from holdfast.web.site import Site


class McpHttp:
    """The ASGI application at `/mcp`."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._starting: asyncio.Task[Any] | None = None
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One call. Whose it is goes with it."""
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        try:
            manager = await asyncio.shield(self._starting)
        except HoldfastError as error:
            raise Denied(501, error.problem, fix=error.fix) from error
        from holdfast.web.tools import WHO

        WHO.set((scope["state"]["who"], scope["state"]["address"]))
        await manager.asgi_app(scope, receive, send)

    async def _start(self) -> Any:
        from holdfast.web.tools import mcp_server, over_http

        manager = over_http(mcp_server(self._site.all_runs, allow_actions=self._site.allow_actions))
        is_ready = asyncio.Event()

        async def run() -> None:
            async with manager.run():
                is_ready.set()
                await asyncio.Event().wait()

        self._running = asyncio.create_task(run())
        await is_ready.wait()
        return manager
