"""The files of the page. They hold nothing of a run, so anybody may have them; what they show is asked with a token."""

from __future__ import annotations

import gzip
import hashlib
import html
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.diagnosis.plot import STATIC
from holdfast.probe.address import Address
from holdfast.probe.serve.reply import Denied
from holdfast.version import __version__
from holdfast.web.site import Site

_FOLDERS = (Path(__file__).parent / "static", STATIC)
_KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".LICENSE": "text/plain"}


def page_routes(site: Site) -> list[BaseRoute]:
    """The page itself, and what belongs to it."""

    async def root(_: Request) -> Response:
        host, port = site.server.server_address
        page = _files()["index.html"].read_text(encoding="utf-8")
        page = page.replace("{{address}}", html.escape(str(Address(host, port)))).replace("{{version}}", html.escape(__version__))
        return Response(page.replace("{{tag}}", _tag()), media_type="text/html")

    return [Route("/", root, methods=["GET"]), Route("/static/{name}", _file, methods=["GET"])]


async def _file(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _files() or name in ("index.html", "embedded.js"):
        raise Denied(404, "there is no such file.", fix="open / in a browser")
    content, zipped = _content(name)
    headers = {"Cache-Control": "public, max-age=31536000, immutable" if "v" in request.query_params else "no-cache"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        content, headers = zipped, {**headers, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(content, headers=headers, media_type=_KINDS.get(Path(name).suffix, "text/plain"))


@cache
def _files() -> dict[str, Path]:
    return {path.name: path for folder in _FOLDERS for path in folder.iterdir()}


def texts() -> dict[str, str]:
    """What every file of the page holds."""
    return {name: path.read_text(encoding="utf-8") for name, path in _files().items()}


@cache
def _content(name: str) -> tuple[bytes, bytes]:
    """A file, and the same compressed."""
    content = _files()[name].read_bytes()
    return content, gzip.compress(content, 9)


@cache
def _tag() -> str:
    """Changes when a file of the page does: a browser keeps the files until then."""
    return hashlib.sha256(b"".join(_files()[name].read_bytes() for name in sorted(_files()))).hexdigest()[:12]
