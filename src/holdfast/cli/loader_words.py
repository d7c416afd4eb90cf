"""How the answer of `holdfast validate --benchmark` looks in a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from holdfast.cli.checkpoints.layout import folded, page
from holdfast.cli.show import DASH, duration, number, size
from holdfast.loading.benchmark import LATE
from holdfast.loading.measurer import OUTGREW
from holdfast.loading.setting import PHASES, by_setting

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.loading.benchmark import Benchmark
    from holdfast.loading.setting import Trial

_BAR = 40
_NEARLY = 1.05
_ADVICE = {
    "read": "reading takes the most: keep the data on a local disk, or in fewer and larger files",
    "decode": "decoding takes the most: do it once and keep the result in a fast format (images: in the size of the training)",
    "augment": "the transform takes the most: do on whole batches on the card, or once and before, what can be done there",
    "sample": "the data set's own code takes the most: look at __getitem__ with a profiler",
    "collate": "collating takes the most: return tensors of one shape and dtype from the data set, made once",
    "transfer": "the way to the card takes the most: pin_memory, and smaller dtypes (uint8 images, made float on the card)",
}
_MEANS = {
    "read": "open and read files",
    "decode": "from bytes to pixels or numbers",
    "augment": "transforms",
    "sample": "the rest of __getitem__",
    "collate": "samples into a batch",
    "transfer": "to the card",
    "other": "indices, and what is left",
}


def show(report: Benchmark) -> None:
    """What it is, where the time goes, the settings, and the one to take."""
    console = page()
    _say(console, _headline(report), style="bold")
    if report.phases:
        _phases(console, report)
    if report.trials:
        _settings(console, report)
    for trial in report.trials:
        if trial.failed and trial.how not in (OUTGREW, LATE) and trial.failed not in (report.failed or ""):
            _say(console, f"failed: {trial.setting.description}: {trial.failed}", style="red")
    for note in [*report.notes, *report.limits.because, *_not_measured(report)]:
        _say(console, f"note: {note}", style="dim")
    _recommended(console, report)


def say_failed(report: Benchmark) -> None:
    """What is wrong with the loader, on stderr."""
    print(f"error: {report.failed}", file=sys.stderr)
    print(f"  fix: {report.fix}", file=sys.stderr)
    if report.best is not None:
        print(f"  until then: {report.best.setting.description} works", file=sys.stderr)


def _headline(report: Benchmark) -> str:
    loader = report.loader
    parts = [loader.kind]
    parts += [f"{loader.samples:,} samples"] if loader.samples is not None else []
    parts += [f"batches of {loader.batch:,}"] if loader.batch is not None else []
    return ", ".join([*parts, f"measured in {duration(report.seconds)}"])


def _phases(console: Console, report: Benchmark) -> None:
    from rich.text import Text

    phases = report.phases
    assert phases is not None
    _say(console, f"\nwhere the time goes (one process, {_short(phases.total)} a sample)")
    for name in PHASES:
        spent = phases.seconds.get(name, 0.0)
        part = spent / phases.total if phases.total else 0.0
        if name == "transfer" and not report.loader.cuda:
            continue
        filled = int(part * _BAR + 0.5)
        line = Text(f"  {name:<9}").append("█" * filled, "cyan").append("·" * (_BAR - filled), "dim")
        console.print(line.append(f" {part:>4.0%}  {_short(spent):>9}  ").append(_MEANS[name], "dim"), soft_wrap=True)


def _settings(console: Console, report: Benchmark) -> None:
    from rich.table import Table

    trials = sorted(by_setting(report.trials), key=_order)
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    cuda = bool(report.loader.cuda)
    names = ["workers", "prefetch", "threads", *(["pin"] if cuda else [])]
    for name in [*names, "samples/s", "memory", "start-up"]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    best = report.best
    for trial in trials:
        chosen = best is not None and trial.setting == best.setting
        table.add_row(*_cells(trial, report, chosen, cuda), style="bold green" if chosen else "red" if trial.failed else "")
    console.print()
    console.print(table)


def _order(trial: Trial) -> tuple[int, ...]:
    setting = trial.setting
    return (setting.workers, setting.threads or 0, setting.prefetch or 0, int(setting.pin))


def _cells(trial: Trial, report: Benchmark, chosen: bool, cuda: bool) -> list[str]:
    setting = trial.setting
    cells = [str(setting.workers), number(setting.prefetch), number(setting.threads)]
    cells += ["yes" if setting.pin else "no"] if cuda else []
    rate = DASH if trial.rate is None else f"{trial.rate:,.0f}" if trial.rate >= 10 else f"{trial.rate:.2g}"
    notes = ["yours"] if trial.own else []
    notes += ["best"] if chosen else []
    notes += ["no time left"] if trial.how == LATE else ["failed"] if trial.failed and trial.how != OUTGREW else []
    notes += ["too much memory"] if trial.how == OUTGREW or (trial.memory or 0) > report.limits.memory else []
    return [*cells, rate, size(trial.memory), duration(trial.start_seconds), ", ".join(notes)]


def _not_measured(report: Benchmark) -> list[str]:
    if report.loader.cuda or not report.trials:
        return []
    return ["no CUDA device here: pin_memory and the transfer were not measured; with one, pin_memory=True usually helps"]


def _recommended(console: Console, report: Benchmark) -> None:
    best, own, gain = report.best, report.own, report.gain
    if best is None:
        if report.trials and report.failed is None:
            _say(console, f"\nno setting fits into {size(report.limits.memory)}: --memory-limit allows more", style="yellow")
        return
    console.print()
    if own is not None and (
        best.setting == own.setting or (gain is not None and gain < _NEARLY and best.setting.workers >= own.setting.workers)
    ):
        _say(console, "yours is as good as any setting that was measured:", style="bold")
    elif gain is not None:
        _say(console, f"use ({_compared(report, gain)}):", style="bold")
    else:
        _say(console, "take:", style="bold")
    from rich.text import Text

    console.print(Text(f"  {best.setting.to_paste}", "bold green"), soft_wrap=True)
    for line in _beside(report):
        _say(console, line, indent="  ")


def _compared(report: Benchmark, gain: float) -> str:
    own, best = report.own, report.best
    assert own is not None and best is not None
    fast = f"{gain:.1f} × as fast as yours" if gain >= _NEARLY or gain < 0.95 else "as fast as yours"
    fewer = own.setting.workers - best.setting.workers
    return fast + (f", with {fewer} fewer worker{'s' if fewer > 1 else ''}" if fewer > 0 else "")


def _beside(report: Benchmark) -> list[str]:
    best, phases = report.best, report.phases
    assert best is not None
    advice = []
    if phases and phases.total:
        most = max(phases.seconds, key=lambda name: phases.seconds[name])
        if most in _ADVICE and phases.seconds[most] > 0.4 * phases.total:
            advice.append(_ADVICE[most])
    advice.append(
        f"memory: {size(best.memory)} of the {size(report.limits.memory)} that it may take; the training itself is not in it"
    )
    return advice


def _short(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.2g} µs" if seconds else DASH


def _say(console: Console, text: str, *, indent: str = "", style: str = "") -> None:
    from rich.text import Text

    if text.startswith("\n"):
        console.print()
    for line in folded(text.strip("\n"), console.width, indent, hang="      " if text.startswith("note: ") else ""):
        console.print(Text(line, style), soft_wrap=True)
