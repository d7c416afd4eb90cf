"""The page of each failure: what the user sees, what Holdfast looks at, causes, fixes.

A page is written by hand under `failure_pages/` and ships with the package; its causes are put in from `causes`, so that page,
ranking and `docs/failures` say the same.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from holdfast.diagnosis.causes import CAUSES, Cause, Fix
from holdfast.probe.words import FINDINGS

ERRORS = {  # errors that end a script and are not findings: nothing is measured, the message identifies them
    "cuda-build-mismatch": "PyTorch, CUDA, the driver and the GPU do not match",
    "device-side-assert": "a GPU kernel failed",
    "shape-mismatch": "shapes, dtypes or devices do not match",
    "graph-error": "the backward pass fails",
    "loop-mistake": "the training loop calls things in the wrong order",
    "compile-trouble": "torch.compile fails or warns",
    "distributed-setup": "the ranks cannot connect",
    "unreadable-sample": "a sample cannot be read",
    "process-died": "the process died without a Python error",
    "script-error": "the script ended with an error",
    "broken-install": "incompatible packages",
}
GROUPS = {
    "NaN, spikes and gradients": (
        *("non-finite-loss", "non-finite-gradient", "non-finite-weights", "non-finite-input", "loss-spike", "loss-divergence"),
        *("gradient-explosion", "gradient-vanishing", "dead-units", "saturated-units", "clipping-every-step", "clipping-never"),
        "scaler-collapse",
    ),
    "The model does not learn, or learns the wrong thing": (
        *("loss-plateau", "loss-oscillation", "not-learning", "constant-predictions", "overfitting", "underfitting"),
        *("metric-decline", "metric-collapse", "parameters-not-trained", "gradients-not-zeroed"),
    ),
    "Data": ("unshuffled-data", "split-leak", "too-good", "preprocessing-mismatch", "token-out-of-range", "class-imbalance"),
    "Memory": ("gpu-out-of-memory", "gpu-memory-growth", "host-out-of-memory", "host-memory-growth"),
    "Hangs, slow steps and ranks": (
        *("hang", "loader-stall", "collective-stall", "rank-divergence", "ranks-differ", "replica-left", "straggler"),
        *("slow-loading", "slow-step", "low-gpu-utilisation", "recompilation", "computing-on-cpu"),
    ),
    "Checkpoints": (
        *("checkpoint-torn", "checkpoint-non-finite", "checkpoint-incompatible", "checkpoint-not-saved", "resume-mismatch"),
    ),
    "Disk, trackers and Holdfast itself": ("tracker-unreachable", "disk-full", "holdfast-degraded"),
    "Errors that end a script": tuple(ERRORS),
}
CODES = tuple(code for group in GROUPS.values() for code in group)
_HERE = "<!-- causes -->"
_OPS = {"multiply": "×", "set": "="}


@dataclass(frozen=True, slots=True)
class Page:
    """One page, as Markdown."""

    code: str
    title: str
    severity: str
    text: str


@cache
def page(code: str) -> Page:
    """The page of a code in `CODES`, with its causes."""
    written = (files("holdfast.diagnosis") / "failure_pages" / f"{code}.md").read_text(encoding="utf-8")
    severity = re.search(r"^Severity: (.*?)\.$", written, re.MULTILINE | re.DOTALL)
    title = written.partition("\n")[0].removeprefix(f"# {code}: ")
    return Page(code, title, " ".join(severity[1].split()) if severity else "", written.replace(_HERE, causes_as_list(code)))


def pages_about(text: str) -> list[str]:
    """The codes of the pages that have these words, those first that have them in their title or more often."""
    found = [re.compile(rf"\b{re.escape(word)}", re.IGNORECASE) for word in re.findall(r"\w+", text)]

    def mentions(code: str) -> tuple[int, int]:
        shown = page(code)
        titled = f"{code.replace('-', ' ')} {shown.title}"
        return sum(bool(word.search(titled)) for word in found), sum(len(word.findall(shown.text)) for word in found)

    return sorted((code for code in CODES if any(mentions(code))), key=mentions, reverse=True)


def causes_of(code: str) -> list[Cause]:
    """What a failure may come from, the most likely first."""
    return sorted((cause for cause in CAUSES if code in cause.seen_by), key=lambda cause: -cause.likely)


def causes_as_list(code: str) -> str:
    """The causes of a failure, each with its fixes, as a Markdown list."""
    lines = []
    for cause in causes_of(code):
        lines += [f"- `{cause.code}`: {cause.because}", *_wrapped(f"**Fix:** {fixes_in_words(cause.fixes)}.")]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 130, initial_indent="  ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def fixes_in_words(fixes: Iterable[Fix]) -> str:
    """Fixes in a sentence, with the settings they change."""
    return "; ".join(f"{fix.text}{_change(fix)}".rstrip(".") for fix in fixes)


def _change(fix: Fix) -> str:
    if fix.setting is None:
        return ""
    value = f" {_OPS.get(fix.op or '', fix.op)} {fix.value}" if fix.value is not None else ""
    return f" (`{fix.setting}{value}`)"


def words(code: str) -> str:
    """A failure in a few words."""
    return FINDINGS.get(code) or ERRORS[code]
