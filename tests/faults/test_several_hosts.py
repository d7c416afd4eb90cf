"""Two machines, each a network and a host name of its own, asked from a third."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from small_server import make_run

from holdfast.errors import NotAllowed
from holdfast.probe.cluster import find
from holdfast.probe.cluster_query import query_all

COUNT = "SELECT host, rank, COUNT(*) FROM steps GROUP BY ALL ORDER BY ALL"


class Machine(NamedTuple):
    """A network namespace, and the address at which it is reached from here."""

    space: str
    address: str


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextlib.contextmanager
def machine(number: int) -> Iterator[Machine]:
    space, here, there = (f"hf{os.getpid() % 100000}{kind}{number}" for kind in "nab")
    net = f"10.{213 + number}.{os.getpid() % 250}"
    try:
        ip("netns", "add", space)
        ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", space)
        ip("addr", "add", f"{net}.1/24", "dev", here)
        ip("link", "set", here, "up")
        ip("-n", space, "addr", "add", f"{net}.2/24", "dev", there)
        ip("-n", space, "link", "set", there, "up")
        yield Machine(space, f"{net}.2:8080")
    finally:
        subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", here], check=False, capture_output=True)


@contextlib.contextmanager
def serves(one: Machine, folder: Path, number: int, token: Path) -> Iterator[None]:
    """`holdfast serve` on that machine, which has a name of its own and two ranks."""
    run = make_run(folder / one.space, f"node{number}", first=2 * number, started=1000.0 + number)
    for recording in run.recordings():
        (recording.path / "process.json").write_text(f'{{"pid": 1, "host": "node{number}"}}')
    options = f"--listen 0.0.0.0:8080 -t {run.path} --token-file {token}"
    serve = f"hostname node{number} && exec {shlex.quote(sys.executable)} -m holdfast serve {options}"
    words = ["ip", "netns", "exec", one.space, "unshare", "--uts", "sh", "-c", serve]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder / one.space)}
    process = subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "without TLS" in said and "serving" in process.stderr.readline(), said
        yield
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Machine], Path]]:
    folder = tmp_path_factory.mktemp("hosts")
    token = folder / "token"
    subprocess.run([sys.executable, "-m", "holdfast", "serve", "--new-token", str(token)], check=True, capture_output=True)
    with contextlib.ExitStack() as stack:
        try:
            machines = [stack.enter_context(machine(number)) for number in range(2)]
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("network namespaces need root and iproute2")
        for number, one in enumerate(machines):
            stack.enter_context(serves(one, folder, number, token))
        yield machines, token


def test_ranks_on_two_machines_answer_together_each_under_its_host(
    two: tuple[list[Machine], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", str(two[1]))
    cluster = find([one.address for one in two[0]])
    assert [one.host for one in cluster.there] == ["node0", "node1"]
    assert query_all(cluster, COUNT).rows == [("node0", 0, 100), ("node0", 1, 100), ("node1", 2, 100), ("node1", 3, 100)]


def test_without_the_token_of_the_machines_nobody_gets_in(
    two: tuple[list[Machine], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "hf_another-token-0123456789")
    with pytest.raises(NotAllowed):
        find([one.address for one in two[0]])


def test_a_machine_whose_cable_is_pulled_is_named_and_the_other_answers(
    two: tuple[list[Machine], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", str(two[1]))
    machines, _ = two
    cluster = find([one.address for one in machines])
    ip("-n", machines[1].space, "link", "set", f"hf{os.getpid() % 100000}b1", "down")
    assert query_all(cluster, COUNT, timeout=20).rows == [("node0", 0, 100), ("node0", 1, 100)]
    assert list(cluster.problems) == [machines[1].address]
