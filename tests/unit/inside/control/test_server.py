from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from every_case import every_case

import holdfast
from holdfast.errors import ControlUnreachable
from holdfast.inside.arm import armed
from holdfast.inside.control import server as control_server
from holdfast.probe.changing import change
from holdfast.probe.control_client import ask, listening
from holdfast.signals.control_socket import connect_to, receive
from holdfast.signals.run_folder import RunFolder


def train(folder: Path, asks: Callable[[RunFolder], Any] | None = None, *, steps: int = 120, **how: Any) -> list[float]:
    """A small training in this thread, while another one asks; it goes on until both are done."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses: list[float] = []
    trouble: list[BaseException] = []
    with holdfast.watch(model, optimizer, folder=folder, **how) as run:

        def work() -> None:
            try:
                if asks is not None:
                    asks(RunFolder(run.folder))
            except Exception as error:  # noqa: BLE001 - told in the thread of the test
                trouble.append(error)

        thread = threading.Thread(target=work)
        while len(losses) < steps or thread.is_alive():
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == 3:
                thread.start()
        thread.join()
    if trouble:
        raise trouble[0]
    return losses


def value(run: RunFolder, code: str) -> str:
    answer = ask(listening(run)[0], {"do": "eval", "code": code, "seconds": 10}, seconds=30)
    assert answer["ok"], answer
    return str(answer["value"])


def test_a_training_that_is_asked_computes_the_same_bit_for_bit(tmp_path: Path) -> None:
    def ask_on(run: RunFolder) -> None:
        for code in ("loss, model[0].weight.grad.norm()", "[p.isnan().any() for p in model.parameters()]", "optimizer") * 10:
            value(run, code)
            if "grad" not in code:  # a backward pass may be writing them: torch itself crashes then
                ask(listening(run)[0], {"do": "eval", "code": code, "now": True}, seconds=30)

    alone = train(tmp_path / "alone", control=False, steps=400)
    together = train(tmp_path / "together", ask_on, steps=400)
    assert alone[:400] == together[:400]


def test_the_path_of_a_run_may_be_as_long_as_it_likes(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40)
    assert len(os.fsencode(folder)) > 150
    train(folder, lambda run: value(run, "1 + 1"))


@every_case("how", ["the call", "the environment"])
def test_control_can_be_switched_off(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(run: RunFolder) -> None:
        assert listening(run) == []
        with pytest.raises(ControlUnreachable, match="HOLDFAST_CONTROL=0"):
            ask(run.recordings()[0], {"do": "where"}, seconds=1)

    if how == "the environment":
        monkeypatch.setenv("HOLDFAST_CONTROL", "0")
        train(tmp_path, look)
    else:
        train(tmp_path, look, control=False)


def test_when_the_recording_ends_the_socket_is_gone_and_who_waits_is_told(tmp_path: Path) -> None:
    seen: list[RunFolder] = []
    train(tmp_path, seen.append)
    assert not list(seen[0].path.glob("*/control"))
    with pytest.raises(ControlUnreachable, match="its training is over"):
        ask(seen[0].recordings()[0], {"do": "where"}, seconds=1)


def test_under_heal_both_factors_on_the_rate_hold_together(tmp_path: Path) -> None:
    def lower(run: RunFolder) -> None:
        from holdfast.signals.action_queue import post
        from holdfast.signals.actions import Action

        change(run, {"do": "set", "text": "lr*=0.5"})
        post(run.path, 1, 0, Action("lower-lr", step=0, because="a test", settings={"factor": 0.1}))
        for _ in range(20):
            value(run, "1")
        (row,) = [row for row in run.journal if row["kind"] == "change"]
        assert (row["from"], row["to"]) == (0.01, 0.005)
        assert value(run, 'optimizer.param_groups[0]["lr"]') == "0.0005"

    train(tmp_path, lower, policy="heal")
    from holdfast.probe.rows import last_rows

    (steps,) = tmp_path.glob("run-*/rank-0")
    assert float(last_rows(steps, "steps", ("lr",), 1)["lr"][-1]) == pytest.approx(0.0005)


def test_what_is_no_request_is_answered_in_words(tmp_path: Path) -> None:
    def send(run: RunFolder) -> None:
        for text, words in (
            (b"hello\n", "not a line of JSON"),
            (b"[1]\n", "not an object"),
            (b'{"do": "dance"}\n', "no request 'dance'"),
        ):
            with connect_to(listening(run)[0].path, 5) as connection:
                connection.sendall(text)
                assert words in receive(connection, at_most=10**6, seconds=5)["error"]
        with connect_to(listening(run)[0].path, 5) as connection, pytest.raises((OSError, EOFError, AssertionError)):
            connection.sendall(b"x" * (3 << 20))
            assert "more than" not in receive(connection, at_most=10**6, seconds=5)["error"]

    train(tmp_path, send)


def test_who_asked_has_the_answer_before_a_training_that_ends_has_closed_its_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, came = threading.Event(), list[dict[str, Any]]()
    remove, send = control_server.remove, control_server.send

    def remove_and_tell(folder: Path, path: Path) -> None:
        remove(folder, path)
        closing.set()

    def send_late(connection: Any, content: dict[str, Any]) -> None:
        assert closing.wait(60)
        send(connection, content)

    monkeypatch.setattr(control_server, "remove", remove_and_tell)
    monkeypatch.setattr(control_server, "send", send_late)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    finish = threading.Event()
    with holdfast.watch(model, optimizer, folder=tmp_path) as run:
        request = {"do": "eval", "code": "finish.set()", "seconds": 10}
        asking = threading.Thread(target=lambda: came.append(ask(listening(RunFolder(run.folder))[0], request, seconds=30)))
        while not finish.is_set():
            optimizer.zero_grad()
            model(torch.randn(4, 8)).pow(2).mean().backward()
            optimizer.step()
            if asking.ident is None:
                asking.start()
        (server,) = armed().runtime.servers._servers.values()
    assert not server._active, "the process may end now, and its threads with it"
    asking.join()
    assert came[0]["ok"], came
