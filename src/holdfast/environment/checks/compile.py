"""Does torch.compile work here: a compiler for the CPU, Triton for the card, and a real tiny compile to show it."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from typing import Any

from holdfast.environment.check import Check, Fix, Verdict, ok, skipped, warning
from holdfast.environment.child import DONE, TIMED_OUT, TOO_LARGE, Ended, run_child
from holdfast.environment.machine import Machine
from holdfast.units import size

_MEMORY = 6 << 30
_EAGER = Fix("or run without it: torch.compile changes the speed, not the result", ("export TORCH_COMPILE_DISABLE=1",))
_KNOWN = (
    (r"Python\.h: No such file", "the headers of Python are missing", ("sudo apt install python3-dev",)),
    (r"InvalidCxxCompiler|CppCompileError|C\+\+ compiler", "no working C++ compiler", ("sudo apt install g++",)),
    (r"Failed to find C compiler|gcc: not found", "no working C compiler", ("sudo apt install gcc",)),
    (r"TritonMissing|Cannot find a working triton", "Triton is missing", ("pip install triton",)),
    (r"GPUTooOldForTriton", "the GPU is too old for Triton (capability under 7.0)", ()),
    (r"not supported on Python|not yet supported.*Python", "torch.compile does not support this Python yet", ()),
    (r"omp\.h: No such file|-lomp|-lgomp", "the compiler has no OpenMP", ("sudo apt install libomp-dev",)),
)  # fmt: skip


def ask(machine: Machine, *, seconds: float = 240.0, memory: int = _MEMORY) -> Verdict:
    """Compile a small function in a child, with a limit on time and memory."""
    torch = machine.torch
    if torch.error is not None:
        return skipped("torch does not work: see torch-build")
    device = "cuda" if torch.available and not any(torch.kernels.values()) else "cpu"
    compiler = os.environ.get("CXX") or next((name for name in ("g++", "clang++", "cl") if shutil.which(name)), None)
    facts: dict[str, Any] = {"device": device, "compiler": compiler, "triton": torch.triton}
    with tempfile.TemporaryDirectory(prefix="holdfast-doctor-") as cache:
        own = {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        ended = run_child("tiny_compile.py", device, seconds=seconds, memory=memory, environment=own)
    if ended.how == DONE:
        took = ended.facts["seconds"]
        return ok(f"a small function compiled for {device} in {took:.1f} s", seconds=took, peak=ended.peak, **facts)
    return _failed(ended, seconds, memory, facts)


def _failed(ended: Ended, seconds: float, memory: int, facts: dict[str, Any]) -> Verdict:
    facts = {**facts, "peak": ended.peak, "got to": ended.stage or "start"}
    if ended.how == TIMED_OUT:
        return warning(f"torch.compile did not finish in {seconds:.0f} s for a small function", _EAGER, **facts)
    if ended.how == TOO_LARGE:
        fix = Fix("compile with one process at a time", ("export TORCHINDUCTOR_COMPILE_THREADS=1",))
        return warning(f"torch.compile took more than {size(memory)} for a small function", fix, _EAGER, **facts)
    for pattern, reason, commands in _KNOWN:
        if re.search(pattern, ended.errors):
            fixes = (Fix("install it", _for_this_system(commands)), _EAGER) if commands else (_EAGER,)
            return warning(f"torch.compile does not work: {reason}", *fixes, said=_error(ended), **facts)
    return warning(f"torch.compile does not work: {_error(ended)}", _EAGER, **facts)


def _for_this_system(commands: tuple[str, ...]) -> tuple[str, ...]:
    if sys.platform == "darwin" and any(command.startswith("sudo apt") for command in commands):
        return ("xcode-select --install",)
    return commands


def _error(ended: Ended) -> str:
    """The line of the error itself; torch adds advice under it."""
    lines = [line.strip() for line in ended.errors.splitlines()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Compiler|Missing|Failed)\w*:", line)]
    return (named[-1] if named else ended.last_output)[:200]


CHECK = Check(name="compile", asks="torch.compile on a small function", ask=ask, seconds=260.0, heavy=True, long=True)
