"""Will MLflow take what a run logs: is its server reached, its database free, its folder writable?"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.environment.check import Check, Fix, Verdict, ok, problem, skipped, warning
from holdfast.environment.file_locks import Holder, holders
from holdfast.environment.machine import Machine
from holdfast.environment.reach import ask_http, why_unreachable, without_secrets

_URI = "MLFLOW_TRACKING_URI"
_SECONDS = 5.0
_ELSEWHERE = Fix(
    "log to a file until then; Holdfast's own records need no tracker", ("export MLFLOW_TRACKING_URI=sqlite:///mlflow-local.db",)
)


def ask(machine: Machine, environment: Mapping[str, str] = os.environ) -> Verdict:
    """By the address in the environment; without one by the database in this folder."""
    uri = environment.get(_URI, "").strip()
    if not uri:
        default = machine.plans.folder / "mlflow.db"
        if default.exists():
            return _database(default)
        there = importlib.util.find_spec("mlflow") is not None
        return skipped("MLflow logs into this folder" if there else "MLflow is not used here")
    kind = urlsplit(uri).scheme.partition("+")[0]
    if kind in ("http", "https"):
        return _server(uri, environment)
    if kind == "sqlite":
        return _database(sqlite_file(uri))
    if kind in ("", "file"):
        return _folder(Path(unquote(urlsplit(uri).path) if kind else uri))
    return _other(uri)


def _server(uri: str, environment: Mapping[str, str]) -> Verdict:
    shown = without_secrets(uri)
    reason = why_unreachable(uri, _SECONDS)
    if reason is not None:
        fix = Fix("start it, or correct MLFLOW_TRACKING_URI", ("mlflow server --port 5000",))
        return problem(f"the MLflow server {shown} cannot be reached: {reason}", fix, _ELSEWHERE, uri=shown)
    status, reply = ask_http(f"{uri.rstrip('/')}/health", _SECONDS, _login(environment))
    facts = {"uri": shown, "status": status}
    if status in (401, 403):
        fix = Fix("name a user that may log", ("export MLFLOW_TRACKING_USERNAME=NAME MLFLOW_TRACKING_PASSWORD=WORD",))
        return problem(f"the MLflow server {shown} refuses this user (status {status})", fix, **facts)
    if status == 0:
        return problem(f"something listens at {shown}, but does not answer: {reply}", _ELSEWHERE, **facts)
    if status != 200 or reply.strip() != "OK":
        fix = Fix("check what is served at that address", (f"curl -i {shown}/health",))
        return warning(f"what answers at {shown} does not look like an MLflow server (status {status})", fix, **facts)
    file = database_behind(uri)
    locked = file is not None and "locked" in (why_locked(file) or "")
    return _database(file) if file is not None and locked else ok(f"the server {shown} answers", **facts)


def _login(environment: Mapping[str, str]) -> dict[str, str]:
    import base64

    token, user = environment.get("MLFLOW_TRACKING_TOKEN"), environment.get("MLFLOW_TRACKING_USERNAME")
    if token:
        return {"Authorization": f"Bearer {token}"}
    if user:
        word = environment.get("MLFLOW_TRACKING_PASSWORD", "")
        return {"Authorization": "Basic " + base64.b64encode(f"{user}:{word}".encode()).decode()}
    return {}


def sqlite_file(uri: str) -> Path:
    """The file of a `sqlite://` address."""
    path = unquote(urlsplit(uri).path)
    return Path(path.removeprefix("/"))  # three slashes: relative to here; four: absolute


def database_behind(uri: str) -> Path | None:
    """The SQLite file of an address: its own, or the one that a server on this machine has open."""
    if uri.startswith("sqlite:"):
        return sqlite_file(uri)
    import psutil

    port = urlsplit(uri).port
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                server = psutil.Process(connection.pid)
                for process in (server, *server.parents(), *server.children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        for file in process.open_files():
                            if _is_sqlite(Path(file.path)):
                                return Path(file.path)
    return None


def _is_sqlite(path: Path) -> bool:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(15) == b"SQLite format 3"
    return False


def _database(file: Path) -> Verdict:
    if not file.exists():
        return _folder(file.parent) if str(file.parent) != "." else ok("the first run creates the database", file=str(file))
    locked = why_locked(file)
    facts = {"file": str(file)}
    if locked is None:
        return ok(f"the database {file} can be written", **facts)
    if "locked" not in locked and "busy" not in locked:
        return problem(f"the database {file} cannot be written: {locked}", _ELSEWHERE, **facts)
    who = holders(file)
    facts["held by"] = ", ".join(map(str, who)) or "nobody on this machine"
    return problem(who_locks(file, who), *_free(who), _ELSEWHERE, **facts)


def who_locks(file: Path, who: list[Holder] | None = None) -> str:
    """That a database is locked, and by which processes."""
    return f"the database {file} is locked{_by(holders(file) if who is None else who)}"


def why_locked(file: Path, seconds: float = 1.0) -> str | None:
    """None if a writer could begin now; the database is not changed."""
    try:
        with contextlib.closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=rw", uri=True, timeout=seconds)) as database:
            database.isolation_level = None
            database.execute("BEGIN IMMEDIATE")
            database.execute("ROLLBACK")
    except sqlite3.Error as error:
        return str(error)
    return None


def _by(who: list[Holder]) -> str:
    writers = [process for process in who if process.writes] or who
    return f" by {', '.join(map(str, writers[:3]))}" if writers else ", by no process of this machine (perhaps over the network)"


def _free(who: list[Holder]) -> list[Fix]:
    server = Fix(
        "several writers need a server in front of the database", ("mlflow server --backend-store-uri sqlite:///mlflow.db",)
    )
    look = tuple(f"ps -o pid,user,etime,args -p {process.pid}" for process in who if process.writes)
    return [Fix("see what holds it; wait, or kill it if it hangs", look), server]


def _folder(folder: Path) -> Verdict:
    near = next((parent for parent in (folder, *folder.parents) if parent.exists()), Path())
    if os.access(near, os.W_OK):
        return ok(f"logs into {folder}", folder=str(folder))
    return problem(
        f"MLflow cannot write {folder}",
        Fix("name a folder of yours", (f"export {_URI}=sqlite:///mlflow.db",)),
        folder=str(folder),
    )


def _other(uri: str) -> Verdict:
    reason = why_unreachable(uri, _SECONDS)
    shown = without_secrets(uri)
    if reason is None:
        return ok(f"{shown} can be reached", uri=shown)
    if reason == "the address has no host":
        return skipped(f"{shown} cannot be tested from here", uri=shown)
    return problem(f"the database {shown} cannot be reached: {reason}", _ELSEWHERE, uri=shown)


CHECK = Check(name="mlflow", asks="MLflow accepts logs", ask=ask, seconds=25.0, waits=True)
