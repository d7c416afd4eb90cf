"""What the page asks: runs, curves, tabs, comparisons, changes. A run of another server is asked there, by the same path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.errors import UsageError
from holdfast.probe.serve.reply import Denied, Json
from holdfast.probe.serve.tokens import find
from holdfast.probe.values import for_json
from holdfast.version import __version__
from holdfast.web import acting, live, tabs
from holdfast.web.checkups import checkup_of
from holdfast.web.commands import answer_of, checkpoints_of
from holdfast.web.curves import AXES
from holdfast.web.gate import who_asks
from holdfast.web.runs import marks
from holdfast.web.sessions import SECONDS
from holdfast.web.site import Site
from holdfast.web.v1 import Endpoint, as_json, body_of, check_may_change

_MOST_POINTS = 4000
_MOST_COMPARED = 12
_OPTIONS = ("along", "from", "to", "points", "smooth", "after", "marks", "tab", "what", "full")  # handed on to another server


class Api:
    """Answers the page."""

    def __init__(self, site: Site) -> None:
        self._site, self._runs = site, site.all_runs

    def routes(self) -> list[Route]:
        """The paths. Only POST changes anything."""
        get: dict[str, Endpoint] = {
            "me": self._me,
            "runs": self._list,
            "run": self._run,
            "curves": self._curves,
            "news": self._news,
            "live": self._live,
            "tab": self._tab,
            "compare": self._compare,
            "checkpoints": self._checkpoints,
        }
        post: dict[str, Endpoint] = {"login": self._login, "logout": self._logout, "act": self._act, "stacks": self._stacks}
        return [
            *(Route(f"/api/{name}", endpoint, methods=["GET"]) for name, endpoint in get.items()),
            *(Route(f"/api/{name}", endpoint, methods=["POST"]) for name, endpoint in post.items()),
        ]

    async def _login(self, request: Request) -> Response:
        """A browser shows its token once; from then on a cookie stands for it, which no script can read."""
        text = (await body_of(request)).get("token")
        token = find(text, self._site.server.tokens) if isinstance(text, str) and len(text) < 500 else None
        if token is None:
            await self._site.slow_down(request.state.address)
            raise Denied(401, "the server does not know this token.", fix="`holdfast ui` prints the link with the token")
        answer = as_json(Json({"name": token.name}))
        sessions = self._site.sessions
        answer.set_cookie(
            sessions.cookie, sessions.new(token), max_age=SECONDS, httponly=True, samesite="strict", secure=self._site.is_secure
        )
        return answer

    async def _logout(self, _: Request) -> Response:
        answer = as_json(Json({}))
        answer.delete_cookie(self._site.sessions.cookie)
        return answer

    async def _me(self, request: Request) -> Response:
        who = request.state.who
        may = self._site.allow_actions and not who.read_only
        return as_json(Json({"name": who.name, "may_act": may, "holdfast": __version__, "far": list(self._site.far)}))

    async def _list(self, _: Request) -> Response:
        rows, problems = await anyio.to_thread.run_sync(self._runs.rows)
        return _plain({"runs": rows, "problems": problems})

    async def _run(self, request: Request) -> Response:
        def here(known_as: str) -> dict[str, Any]:
            watched = self._runs.find(known_as)
            return {"row": watched.row(known_as), "marks": marks(watched.look().events)}

        return await self._here_or_there(request, here)

    async def _curves(self, request: Request) -> Response:
        options = request.query_params
        along = _axis(request)
        low, high = _number(options.get("from")), _number(options.get("to"))
        points, smooth = int(_number(options.get("points")) or 800), int(_number(options.get("smooth")) or 0)

        def here(known_as: str) -> dict[str, Any]:
            watched = self._runs.find(known_as)
            curves, events = self._runs.curves(watched), watched.look().events
            places = curves.positions_of([event.step for event in events], [event.time for event in events], along)
            answer = curves.answer(along=along, low=low, high=high, points=max(20, min(points, _MOST_POINTS)), smooth=smooth)
            return {**answer, "marks": places}

        return await self._here_or_there(request, here)

    async def _news(self, request: Request) -> Response:
        after, seen = (int(_number(request.query_params.get(name)) or 0) for name in ("after", "marks"))
        return await self._here_or_there(
            request, lambda known_as: live.news_of(self._runs, known_as, _axis(request), after, seen)
        )

    async def _live(self, request: Request) -> Response:
        seconds, known_as = self._site.server.limits.answer_seconds, request.query_params.get("run")
        if known_as is None:
            return live.of_all(self._runs, seconds)
        if self._runs.far(known_as) is None:
            await anyio.to_thread.run_sync(self._runs.find, known_as)
        after, seen = (int(_number(request.query_params.get(name)) or 0) for name in ("after", "marks"))
        return live.of_one(self._runs, known_as, _axis(request), seconds, after, seen)

    async def _tab(self, request: Request) -> Response:
        name = request.query_params.get("tab", "")
        if name == "diagnosis" and self._runs.far(_named(request)) is None:
            return _plain(await checkup_of(await anyio.to_thread.run_sync(self._runs.find, _named(request))))
        if name != "diagnosis" and name not in tabs.TABS:
            raise UsageError(f"there is no tab {name[:40]!r}.", fix=f"one of: {', '.join(('diagnosis', *tabs.TABS))}")
        more = {"what": request.query_params["what"]} if name == "ranks" and "what" in request.query_params else {}
        return await self._here_or_there(request, lambda known_as: tabs.TABS[name](self._runs.find(known_as), **more))

    async def _checkpoints(self, request: Request) -> Response:
        if self._runs.far(_named(request)) is not None:
            return await self._here_or_there(request, lambda _: {})
        watched = await anyio.to_thread.run_sync(self._runs.find, _named(request))
        is_quick = request.query_params.get("full") != "1"
        return _plain({"checkpoints": await checkpoints_of(watched.run.path, quick=is_quick)})

    async def _compare(self, request: Request) -> Response:
        names = request.query_params.getlist("run")[:_MOST_COMPARED]
        metric = request.query_params.get("metric")
        here = await anyio.to_thread.run_sync(self._runs.here)
        if any(name not in here and self._runs.far(name) is None for name in names) or len(names) < 2:
            raise UsageError("a comparison needs two runs of the list.", fix="select them in the list")
        if all(name in here for name in names):
            return _plain(await anyio.to_thread.run_sync(tabs.comparison, [here[name] for name in names], metric))
        targets = [str(here[name].path) if name in here else name for name in names]
        arguments = ["compare", *([f"--metric={metric}"] if metric else [])]
        return _plain(await answer_of(arguments, *targets))

    async def _stacks(self, request: Request) -> Response:
        """Taking stacks stops the processes for a moment: a request that asks for it, never one that only looks."""
        if self._runs.far(_named(request)) is not None:
            return await self._here_or_there(request, lambda _: {}, body={})
        watched = await anyio.to_thread.run_sync(self._runs.find, _named(request))
        return _plain(await answer_of(["backtrace", "--no-native"], str(watched.run.path)))

    async def _act(self, request: Request) -> Response:
        acting.check_allowed(self._site.allow_actions)
        check_may_change(self._site, request)
        body = await body_of(request)
        acting.command_of("run", body)  # refuses what makes no sense
        who = f"{who_asks(request.scope)} (page)"

        def here(known_as: str) -> dict[str, Any]:
            self._site.server.say(f"{who}: {acting.command_of(known_as, body)}")
            return acting.act(self._runs.find(known_as).run, body, who)

        return await self._here_or_there(request, here, body=body)

    async def _here_or_there(
        self, request: Request, here: Callable[[str], dict[str, Any]], body: dict[str, Any] | None = None
    ) -> Response:
        known_as = _named(request)
        far = self._runs.far(known_as)
        if far is None:
            return _plain(await anyio.to_thread.run_sync(here, known_as))
        remote, name = far
        options: dict[str, Any] = {key: value for key, value in request.query_params.items() if key in _OPTIONS}
        ask = (lambda: remote.get(request.url.path, run=name, **options)) if body is None else (
            lambda: remote.post(request.url.path, body, run=name, **options)
        )  # fmt: skip
        return _plain(await anyio.to_thread.run_sync(ask))


def _plain(content: Any) -> Response:
    return as_json(Json(for_json(content)))


def _named(request: Request) -> str:
    name = request.query_params.get("run")
    if not name:
        raise UsageError("no run is named.", fix="add ?run=NAME")
    return name


def _axis(request: Request) -> str:
    along = request.query_params.get("along", "step")
    return along if along in AXES else "step"


def _number(text: str | None) -> float | None:
    try:
        value = float(text) if text else None
    except ValueError:
        return None
    return value if value is not None and abs(value) < 1e15 else None
