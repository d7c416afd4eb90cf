"""`holdfast validate --benchmark`: how fast a loader is by its settings, where its time goes, and which setting to take."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import typer

from holdfast.loading.benchmark import Asked, Benchmark, benchmark
from holdfast.loading.setting import Limits

_GIB = 1 << 30
_SHARE = 0.8  # of the memory that is free: the training itself needs some


def measure_loader(
    target: str,
    *,
    batch: int | None,
    seconds: float,
    memory: float | None,
    as_json: bool,
) -> None:
    """Measure and tell; exit 1 if the loader itself fails."""
    platform = _platform()
    request = Asked(
        target=target, batch=batch, seconds=seconds, cores=max(1, int(platform.usable)), limits=_limits(platform, memory),
        free=_free(platform),
    )  # fmt: skip
    with _telling() as tell:
        report = benchmark(request, tell)
    if as_json:
        from holdfast.cli.show import for_json

        print(json.dumps(for_json(as_row(report)), ensure_ascii=False))
    else:
        from holdfast.cli.loader_words import show

        show(report)
    sys.stdout.flush()
    if report.failed is not None:
        from holdfast.cli.loader_words import say_failed

        say_failed(report)
        raise typer.Exit(1)


def as_row(report: Benchmark) -> dict[str, Any]:
    """As JSON has it."""
    from holdfast.loading.setting import by_setting

    best = report.best
    return {
        "loader": report.loader.kind,
        "batch": report.loader.batch,
        "samples": report.loader.samples,
        "cuda": report.loader.cuda or None,
        "seconds_per_sample": report.phases.seconds if report.phases else None,
        "settings": [trial.as_row() for trial in by_setting(report.trials)],
        "memory_limit": report.limits.memory,
        "recommended": {**best.as_row(), "line": best.setting.to_paste} if best else None,
        "gain": report.gain,
        "failed": report.failed,
        "fix": report.fix or None,
        "notes": [*report.notes, *report.limits.because],
        "seconds": report.seconds,
    }


@contextlib.contextmanager
def _telling() -> Iterator[Callable[[str], None]]:
    """What is being done: one line that changes in a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False).status("starting …", spinner="dots") as status:
        yield status.update


def _platform() -> Any:
    from holdfast.environment.platform import read_platform

    return read_platform()


def _limits(platform: Any, memory: float | None) -> Limits:
    """Memory that is free here, in the container or on the machine, and what such a machine asks for."""
    from holdfast.environment.nvidia import read_nvidia
    from holdfast.environment.rules import rules_for

    cards = tuple(card.name for card in read_nvidia().cards)
    rules = rules_for(platform, card_names=cards)
    free = int(memory * _GIB) if memory is not None else int(_SHARE * _free(platform))
    if rules.threads is None:  # other machines have wishes to start from: here it is measured
        return Limits(memory=free)
    reasons = tuple(reason for reason in rules.because if "Triton" not in reason and "chunks" not in reason)
    return Limits(memory=free, workers=rules.workers, threads=rules.threads, because=reasons)


def _free(platform: Any) -> int:
    import psutil

    free = int(psutil.virtual_memory().available)
    limits = platform.limits
    if limits.memory is not None:
        free = min(free, max(0, limits.memory - (limits.memory_used or 0)))
    return free
