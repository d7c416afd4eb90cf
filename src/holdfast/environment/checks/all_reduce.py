"""Do two processes of this machine find each other and add up a tensor? A real one, with a time limit."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from holdfast.environment.check import Check, Fix, Verdict, ok, problem, skipped
from holdfast.environment.child import DONE, TIMED_OUT, Child, Ended
from holdfast.environment.machine import Machine

_RANKS = 2
_NAMES = ("NCCL_", "GLOO_", "MASTER_ADDR", "TORCH_NCCL")


def ask(machine: Machine, *, seconds: float = 60.0) -> Verdict:
    """NCCL where torch sees two cards, gloo elsewhere."""
    if machine.torch.error is not None:
        return skipped("torch does not work: see torch-build")
    backend = "nccl" if len(machine.torch.devices) >= _RANKS and machine.torch.cuda else "gloo"
    ranks = _run(backend, seconds)
    facts: dict[str, Any] = {"backend": backend, "ranks": _RANKS, **_settings()}
    facts |= {f"rank {number} got to": rank.stage or "start" for number, rank in enumerate(ranks)}
    if all(rank.how == DONE for rank in ranks):
        took = max(rank.facts["seconds"] for rank in ranks)
        return ok(f"{_RANKS} processes added up a tensor over {backend} in {took * 1000:.0f} ms", seconds=took, **facts)
    return _failed(backend, ranks, seconds, facts)


def _run(backend: str, seconds: float) -> list[Ended]:
    """Start the ranks, and wait for both; of one that fails the other hears."""
    with tempfile.TemporaryDirectory(prefix="holdfast-doctor-") as folder:
        arguments = [backend, f"{folder}/store", str(_RANKS), str(seconds)]
        children = [Child("all_reduce_rank.py", str(rank), *arguments) for rank in range(_RANKS)]
        return [child.wait(seconds) for child in children]  # each counts from its own start


def _failed(backend: str, ranks: list[Ended], seconds: float, facts: dict[str, Any]) -> Verdict:
    errors = [rank for rank in ranks if rank.how not in (DONE, TIMED_OUT)]
    fixes = _fixes(backend)
    if errors:
        return problem(f"an all-reduce over {backend} failed: {errors[0].last_output[:200]}", *fixes, **facts)
    behind = min(range(len(ranks)), key=lambda number: len(ranks[number].facts))
    stage = ranks[behind].stage or "start"
    message = f"an all-reduce over {backend} did not end in {seconds:.0f} s; rank {behind} got no further than: {stage}"
    return problem(message, *fixes, **facts)


def _fixes(backend: str) -> list[Fix]:
    prefix = "NCCL" if backend == "nccl" else "GLOO"
    fixes = [
        Fix(
            "choose an existing network interface: loopback on one machine, else the one between the machines",
            (f"export {prefix}_SOCKET_IFNAME=lo",),
        ),
        Fix("this machine's host name must resolve to its own address", ("getent hosts $(hostname)",)),
    ]
    if backend == "nccl":
        fixes.append(Fix("without direct access between GPUs", ("export NCCL_P2P_DISABLE=1",)))
        fixes.append(Fix("see what it does", ("export NCCL_DEBUG=INFO",)))
    return fixes


def _settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_NAMES)}


CHECK = Check(name="all-reduce", asks="all-reduce of two processes", ask=ask, seconds=80.0, heavy=True, long=True)
