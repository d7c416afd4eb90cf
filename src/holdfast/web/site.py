"""What the page, MCP and the metrics share: the server, its sessions, and the runs, also those of other servers."""

from __future__ import annotations

import asyncio

from holdfast.probe.serve.reply import Denied
from holdfast.probe.serve.server import Server
from holdfast.web.runs import Runs
from holdfast.web.sessions import Sessions


class Site:
    """One server's page. `far` are other servers by address; `allow_actions` lets the page and MCP change a training."""

    def __init__(
        self,
        server: Server,
        sessions: Sessions,
        *,
        far: tuple[str, ...] = (),
        hosts: tuple[str, ...] = (),
        allow_actions: bool = False,
        is_secure: bool = False,
    ) -> None:
        self.server, self.sessions, self.far, self.hosts = server, sessions, far, hosts
        self.allow_actions, self.is_secure = allow_actions, is_secure
        self.all_runs = Runs(server.runs, far)

    async def slow_down(self, address: str, *, tried: bool = True) -> None:
        """Make a wrong token cost something: time, and after a few of them a pause."""
        self.server.say_of_stranger(address)
        if tried and not self.server.wrong_tokens.allows(address):
            raise Denied(429, "too many wrong tokens.", fix="wait a minute; then use the right one")
        await asyncio.sleep(self.server.limits.wrong_token_seconds)
