"""What torch.compile's modes cost and save on a model of the user's, measured in processes of their own."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.environment.child import DONE, TIMED_OUT, TOO_LARGE, Ended, run_child
from holdfast.errors import UsageError
from holdfast.units import size

EAGER = "eager"
MODES = (EAGER, "default", "reduce-overhead", "max-autotune")
_NOTICED = 0.97  # of the eager step: what is gained by less is noise of the measurement
_MOST_STEPS = 100_000_000
_CANNOT = 3  # exit code of the child if it is not torch.compile that failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One mode. Seconds to compile, seconds a step, bytes at the peak; `failed` says why there are none."""

    mode: str
    compile_seconds: float | None = None
    step_seconds: float | None = None
    peak_bytes: int | None = None
    graph_breaks: int | None = None
    break_reasons: tuple[str, ...] = ()
    cudagraph_skips: int = 0
    partial_batch_seconds: float | None = None
    partial_batch_graphs: int = 0
    device: str = ""
    loss: float | None = None
    failed: str | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)


def measure(factory: str, mode: str, *, seconds: float = 600.0, memory: int | None = None) -> Measured:
    """Compile and run in a child, with its own empty caches, so that the time to compile is that of a first start."""
    check_name(factory)
    with tempfile.TemporaryDirectory(prefix="holdfast-compile-") as cache:
        own = {"TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": cache}
        ended = run_child("compile_mode.py", factory, mode, seconds=seconds, memory=memory, environment=own)
    if ended.code == _CANNOT or (ended.how not in (DONE, TIMED_OUT, TOO_LARGE) and "error" in ended.facts):
        raise UsageError(str(ended.facts["error"]), fix=str(ended.facts.get("fix", "run it in Python to see the error")))
    facts = {name: ended.facts[name] for name in Measured.__slots__ if name in ended.facts}
    facts["break_reasons"] = tuple(facts.get("break_reasons", ()))
    if facts.get("device") == "cpu" and ended.peak:
        facts["peak_bytes"] = ended.peak
    return Measured(**{**facts, "mode": mode, "failed": _why(ended, seconds, memory), "notes": tuple(_notes(ended))})


def check_name(factory: str) -> None:
    """Refuse what cannot be a factory before anything is started."""
    if not re.fullmatch(r"[\w.]+:[\w.]+", factory):
        raise UsageError(
            f"{factory!r} does not name a factory.", fix="package.module:factory, as in `holdfast doctor --compile train:make`"
        )


def _why(ended: Ended, seconds: float, memory: int | None) -> str | None:
    if ended.how == DONE:
        return None
    if ended.how == TIMED_OUT:
        return f"not finished in {seconds:.0f} s (last stage: {ended.stage or 'start'})"
    if ended.how == TOO_LARGE:
        return f"took more than {size(memory or 0)} of memory (last stage: {ended.stage})"
    lines = [line.strip() for line in ended.errors.splitlines()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Compiler|Missing|Failed)\w*:", line)]
    return (named[-1] if named else ended.last_output)[:200]


def _notes(ended: Ended) -> Iterator[str]:
    """What torch said that people ask about, and whether it matters."""
    if ended.facts.get("device") == "cuda" and (ended.facts.get("cudagraph_skips") or "skipping cudagraphs" in ended.errors):
        yield "CUDA graphs were skipped for a part: the results are right, that part does not gain from reduce-overhead"
    if "Not enough SMs" in ended.errors:
        yield "'Not enough SMs to use max_autotune_gemm' is harmless: matrix products use their normal kernels on this GPU"


def break_even(eager: Measured, mode: Measured) -> int | None:
    """Steps after which compiling has paid; None if it never does."""
    if None in (eager.step_seconds, mode.step_seconds, mode.compile_seconds) or mode.failed:
        return None
    assert eager.step_seconds is not None and mode.step_seconds is not None and mode.compile_seconds is not None
    if mode.step_seconds > _NOTICED * eager.step_seconds:
        return None
    return int(mode.compile_seconds / (eager.step_seconds - mode.step_seconds)) + 1


def advice(all_modes: list[Measured]) -> list[tuple[int, str]]:
    """From which number of steps on which mode is the quickest in all, compiling included. Begins with eager at 0."""
    eager = next(mode for mode in all_modes if mode.mode == EAGER)
    paying = [mode for mode in all_modes if mode.mode != EAGER and break_even(eager, mode) is not None]
    chosen: list[tuple[int, str]] = [(0, EAGER)]
    current, at = eager, 0
    while True:
        crossings = [(steps, mode) for mode in paying if (steps := _crossing(current, mode)) is not None and steps > at]
        if not crossings:
            return chosen
        at, current = min(crossings, key=lambda pair: (pair[0], pair[1].step_seconds or 0.0))
        if at > _MOST_STEPS:
            return chosen
        chosen.append((at, current.mode))


def _crossing(now: Measured, other: Measured) -> int | None:
    """The number of steps from which on `other` has taken less time in all than `now`."""
    assert now.step_seconds is not None and other.step_seconds is not None
    saved = now.step_seconds - other.step_seconds
    if other.step_seconds > _NOTICED * now.step_seconds:
        return None
    return max(1, int(((other.compile_seconds or 0.0) - (now.compile_seconds or 0.0)) / saved) + 1)


def as_row(eager: Measured, measured: Measured) -> dict[str, Any]:
    """A mode as JSON has it."""
    speedup = eager.step_seconds / measured.step_seconds if eager.step_seconds and measured.step_seconds else None
    return {**asdict(measured), "speedup": speedup, "break_even_steps": break_even(eager, measured)}
