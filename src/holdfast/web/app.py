"""The one application: the API of `-t HOST:PORT`, the page, `/metrics` and `/mcp`, all behind the gate."""

from __future__ import annotations

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.probe.serve.reply import Denied
from holdfast.web import metrics, v1
from holdfast.web.api import Api
from holdfast.web.gate import Gate
from holdfast.web.mcp_http import McpHttp
from holdfast.web.page import page_routes
from holdfast.web.site import Site


def application(site: Site) -> ASGIApp:
    """All of it."""
    routes = [
        Route("/v1/{path:path}", v1.endpoint(site), methods=["GET", "POST"]),
        *Api(site).routes(),
        *page_routes(site),
        Route("/metrics", _metrics(site), methods=["GET"]),
        Route("/mcp", McpHttp(site), methods=["GET", "POST", "DELETE"]),
    ]
    return Gate(Router(routes=routes, default=_nothing, redirect_slashes=False), site)


def _metrics(site: Site) -> v1.Endpoint:
    async def answer(_: Request) -> Response:
        return Response(await anyio.to_thread.run_sync(metrics.exposition, site.all_runs), headers={"Content-Type": metrics.KIND})

    return answer


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    if scope["type"] == "http":
        raise Denied(404, f"there is nothing at {scope['method']} {scope['path'][:80]}.", fix="see docs/diagnose.md")
