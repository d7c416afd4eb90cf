from __future__ import annotations

import os
import subprocess
import sys

import pytest
from every_case import every_case

from holdfast.probe.stacks.permission import Facts, facts_about, may_trace, tracer_of, why_not

DENIED = "Permission Denied: Try running again with elevated permissions by going 'sudo env \"PATH=$PATH\" !!'"


@every_case(
    ("facts", "words"),
    [
        (
            Facts(yama=1),
            "kernel.yama.ptrace_scope is 1: only a parent may trace a process. sudo sysctl kernel.yama.ptrace_scope=0",
        ),
        (Facts(yama=2), "kernel.yama.ptrace_scope is 2: only root may trace"),
        (Facts(yama=3, may_trace=True), "kernel.yama.ptrace_scope is 3"),
        (Facts(yama=0, container=True), "this container has no capability CAP_SYS_PTRACE: docker run --cap-add SYS_PTRACE"),
        (Facts(yama=1, container=True), "in a container also: docker run --cap-add SYS_PTRACE"),
        (Facts(owner="anna"), "it belongs to user anna: run this as anna or as root"),
        (Facts(tracer=77, may_trace=True), "a debugger (process 77) traces it already"),
        (Facts(linux=False), "macOS lets only root"),
        (Facts(yama=0), "capability CAP_SYS_PTRACE is missing"),
        (Facts(yama=0, may_trace=True), "seccomp"),
        (Facts(alive=False), "the process has ended"),
    ],
)
def test_each_refusal_names_what_is_missing(facts: Facts, words: str) -> None:
    assert words in why_not(DENIED, facts)


def test_what_is_no_refusal_says_what_it_is() -> None:
    assert why_not("Failed to find python version from target process", Facts()) == "not a Python process"
    gone = "Failed to get process executable name. Check that the process is running.; 0: No such file or directory (os error 2)"
    assert why_not(gone, Facts()) == "the process has ended"
    assert why_not("py-spy is not installed", Facts()) == "py-spy is not installed"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_facts_of_this_machine_can_be_read() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        facts = facts_about(other.pid)
        other.kill()
    assert facts.linux and facts.alive and facts.tracer is None and facts.owner is None
    assert may_trace() == (facts.may_trace)
    assert tracer_of(os.getpid()) is None
