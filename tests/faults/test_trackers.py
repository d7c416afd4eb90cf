"""Real trackers in an environment of their own: what is down, slow, locked or killed delays no run and loses nothing.

`make test-trackers` makes the environment and runs these tests.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from holdfast_run import environment, wait_until

PYTHON = os.environ.get("HOLDFAST_TRACKERS_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="needs mlflow, wandb and trackio in an environment of their own: make test-trackers"),
]
TRAINS = """
import pathlib, sys, time, torch
import holdfast
run = holdfast.watch()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(120):
    loss = model(torch.randn(8, 4)).square().mean()
    if step == 100:
        loss = loss * float("nan")
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 40:
        while not pathlib.Path("go").exists():
            time.sleep(0.05)
run.log(recall=0.5, split="val")
print("val_acc 0.75")
"""
LOCKS = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
"""
IN_MLFLOW = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(sys.argv[1])
(run,) = client.search_runs([one.experiment_id for one in client.search_experiments()])
history = {name: [one.step for one in client.get_metric_history(run.info.run_id, name)] for name in run.data.metrics}
files = [one.path for one in client.list_artifacts(run.info.run_id)]
print(json.dumps({"history": history, "tags": run.data.tags, "status": run.info.status, "files": files}))
"""
IN_WANDB = """
import json, sys
from pathlib import Path
from holdfast.logs.wandb_run import _records
from wandb.proto.wandb_internal_pb2 import Record
rows, alerts, artifacts, tags = [], [], [], []
for data in _records(Path(sys.argv[1])):
    record = Record()
    record.ParseFromString(data)
    kind = record.WhichOneof("record_type")
    if kind == "history":
        rows.append({one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in record.history.item})
    elif kind == "alert":
        alerts.append(record.alert.text)
    elif kind == "artifact":
        artifacts.append(record.artifact.type)
    elif kind == "request" and record.request.WhichOneof("request_type") == "log_artifact":
        artifacts.append(record.request.log_artifact.artifact.type)
    elif kind == "run":
        tags = list(record.run.tags)
print(json.dumps({"rows": rows, "alerts": alerts, "artifacts": artifacts, "tags": tags}))
"""
IN_TRACKIO = """
import json, sys, trackio
(run,) = trackio.Api().runs(sys.argv[1])
print(json.dumps({"rows": trackio.SQLiteStorage.get_logs(sys.argv[1], run.name), "alerts": run.alerts()}, default=str))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAINS)
    (tmp_path / "go").touch()
    return tmp_path


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes to end with everything that they have started."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        for child in children:
            child.kill()
    process.wait()


def holdfast(place: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PYTHON, "-m", "holdfast.cli.main", *words],
        cwd=place,
        env=environment(place, **variables),
        text=True,
        capture_output=True,
        timeout=600,
        check=False,
    )


def ask(program: str, *words: str, **variables: str) -> dict[str, Any]:
    env = {**os.environ, **variables}
    done = subprocess.run([PYTHON, "-c", program, *words], text=True, capture_output=True, timeout=600, check=False, env=env)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def senders(place: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "holdfast.integrations.beside" in words and any(word.startswith(str(place)) for word in words):
            found.append(process)
    return found


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture
def serve(place: Path, started: list[subprocess.Popen[str]]) -> Callable[[int], subprocess.Popen[str]]:
    """Start an MLflow server with SQLite behind it."""

    def start(port: int) -> subprocess.Popen[str]:
        where = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        store = ["--backend-store-uri", f"sqlite:///{place}/mlflow.db", "--artifacts-destination", str(place / "artifacts")]
        words = [PYTHON, "-m", "mlflow", "server", *where, *store]
        with (place / "server.log").open("a") as log:
            process = subprocess.Popen(words, cwd=place, text=True, stdout=log, stderr=log, env=environment(place))
        started.append(process)

        def answers() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                assert process.poll() is None, (place / "server.log").read_text()
                return False

        wait_until(answers)
        return process

    return start


def lock(place: Path, started: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", LOCKS, str(place / "mlflow.db")]
    process = subprocess.Popen(words, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    started.append(process)
    assert process.stdout is not None and process.stdout.readline() == "locked\n"
    return process


def check_mlflow(uri: str) -> None:
    """All of the run is there, each step once."""
    there = ask(IN_MLFLOW, uri)
    assert there["history"]["train/loss"] == list(range(120)), there["history"]["train/loss"]
    assert there["history"]["train/lr"] == list(range(120)) and there["history"]["val/acc"] and there["history"]["val/recall"]
    assert there["tags"]["holdfast.finding.non-finite-loss"].startswith("critical: ")
    assert there["status"] == "FINISHED" and there["files"] == ["report.html"]


def test_mlflow_with_a_locked_database_and_a_killed_server_loses_nothing(
    place: Path, serve: Callable[[int], subprocess.Popen[str]], started: list[subprocess.Popen[str]]
) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    server = serve(port)
    ask(IN_MLFLOW.replace("(run,) =", "print('{}'); sys.exit() #"), uri)  # the server has opened its database
    holder = lock(place, started)
    done = holdfast(place, "run", "--name", "a", "--to", "mlflow", "--", PYTHON, "train.py", MLFLOW_TRACKING_URI=uri)
    assert done.returncode == 0 and "val_acc 0.75" in done.stdout, done.stderr
    wait_until(lambda: not senders(place))
    answer = holdfast(place, "sync", "a", MLFLOW_TRACKING_URI=uri)
    assert answer.returncode == 2 and f"{place}/mlflow.db is locked by process {holder.pid} (" in answer.stderr, answer.stderr
    kill(holder)
    kill(server)
    answer = holdfast(place, "sync", "a", MLFLOW_TRACKING_URI=uri)
    assert answer.returncode == 2 and f"cannot be reached: nothing listens on port {port}" in answer.stderr, answer.stderr
    serve(port)
    answer = holdfast(place, "sync", "a", MLFLOW_TRACKING_URI=uri)
    assert answer.returncode == 0 and "and the report sent (http://" in answer.stdout, answer.stderr
    check_mlflow(uri)
    assert "nothing left to send" in holdfast(place, "sync", "a", MLFLOW_TRACKING_URI=uri).stdout


def test_mlflow_killed_in_the_middle_with_its_sender_has_each_step_once(
    place: Path, serve: Callable[[int], subprocess.Popen[str]], started: list[subprocess.Popen[str]]
) -> None:
    port = free_port()
    uri = f"http://127.0.0.1:{port}"
    server = serve(port)
    (place / "go").unlink()
    words = [PYTHON, "-m", "holdfast.cli.main", "run", "--name", "a", "--to", "mlflow", "--", PYTHON, "train.py"]
    env = environment(place, MLFLOW_TRACKING_URI=uri)
    run = subprocess.Popen(words, cwd=place, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    started.append(run)

    def sent() -> int:
        cursor = place / "runs" / "a" / "sent" / "mlflow.json"
        return int(json.loads(cursor.read_text())["values"]) if cursor.exists() else 0

    wait_until(lambda: sent() > 40)
    kill(server)
    for process in senders(place):
        process.send_signal(signal.SIGKILL)
    (place / "go").touch()
    assert run.wait(600) == 0
    serve(port)
    answer = holdfast(place, "sync", "a")  # the cursor knows the address
    assert answer.returncode == 0, answer.stderr
    check_mlflow(uri)


def test_mlflow_in_a_database_of_this_folder_needs_no_server(place: Path) -> None:
    uri = f"sqlite:///{place}/own.db"
    done = holdfast(place, "run", "--name", "a", "--to", "mlflow", "--", PYTHON, "train.py", MLFLOW_TRACKING_URI=uri)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not senders(place))
    check_mlflow(uri)


def test_wandb_offline_holds_steps_findings_and_the_report(place: Path) -> None:
    done = holdfast(place, "run", "--name", "a", "--to", "wandb", "--", PYTHON, "train.py", WANDB_MODE="offline")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not senders(place))
    (file,) = (place / "runs" / "a" / "wandb").glob("offline-run-*/*.wandb")
    there = ask(IN_WANDB, str(file))
    assert [row["step"] for row in there["rows"] if "train/loss" in row] == list(range(120))
    assert any("val/acc" in row for row in there["rows"])
    assert "non-finite-loss" in there["tags"] and there["alerts"] and "report" in there["artifacts"]
    assert "nothing left to send" in holdfast(place, "sync", "a", WANDB_MODE="offline").stdout


def test_wandb_without_a_login_says_so_and_the_run_goes_on(place: Path) -> None:
    variables = {"WANDB_MODE": "online", "HOME": str(place), "WANDB_API_KEY": ""}
    done = holdfast(place, "run", "--name", "a", "--to", "wandb", "--", PYTHON, "train.py", **variables)
    assert done.returncode == 0 and "val_acc 0.75" in done.stdout
    wait_until(lambda: not senders(place))
    assert "wandb login" in holdfast(place, "sync", "a", **variables).stderr
    assert "the report sent" in holdfast(place, "sync", "a", WANDB_MODE="offline").stdout


def test_trackio_holds_steps_and_findings(place: Path) -> None:
    variables = {"TRACKIO_DIR": str(place / "trackio"), "TRACKIO_PROJECT": "small"}
    done = holdfast(place, "run", "--name", "a", "--to", "trackio", "--", PYTHON, "train.py", **variables)
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not senders(place))
    there = ask(IN_TRACKIO, "small", **variables)
    assert [row["step"] for row in there["rows"] if "train/loss" in row] == list(range(120))
    assert any("non-finite-loss" in str(one) for one in there["alerts"])
