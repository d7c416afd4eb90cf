"""Connections of a process as Linux lists them, and which ranks nobody reaches."""

from __future__ import annotations

import os
import socket

import pytest

from holdfast.probe.stacks import cut_off
from holdfast.probe.stacks.cut_off import Connection, connections

A, B = "10.0.0.1", "10.0.0.2"


@pytest.mark.skipif(not os.path.exists("/proc/self/net/tcp"), reason="Linux lists them")  # noqa: PTH110
def test_an_open_connection_of_a_process_is_listed_with_both_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted = server.accept()[0]
        assert Connection("127.0.0.1", "127.0.0.1", 0) in list(connections(os.getpid()))
        client.close()
        accepted.close()


def test_the_ranks_at_the_address_that_does_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    of_process = {
        10: [Connection(A, B, 4), Connection(A, A, 0)],
        11: [Connection(A, A, 0)],
        12: [Connection(B, A, 5)],
        13: [Connection(B, B, 0)],
    }
    monkeypatch.setattr(cut_off, "connections", of_process.__getitem__)
    assert cut_off.cut_off({0: 10, 1: 11, 2: 12, 3: 13}) == {"cut_off": B, "missing": [2, 3]}
    assert cut_off.cut_off({1: 11, 3: 13}) == {}
