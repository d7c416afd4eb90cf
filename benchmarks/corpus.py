"""Score the diagnosis on 98 real logs of strangers, labelled by hand (`../shared/corpus`): run `benchmarks/corpus.py`.

Only rows whose confidence is high count; a label under `dont_care` counts neither way.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import Counter
from pathlib import Path

from holdfast.detectors.curves.order import look_at
from holdfast.detectors.finding import Finding
from holdfast.errors import HoldfastError
from holdfast.logs.open import open_log

CORPUS = Path(__file__).parents[2] / "shared" / "corpus"
GROUPS = {
    "nan": {"nan"},
    "diverged": {"diverged", "spike_unrecovered"},
    "spike recovered": {"spike_recovered"},
    "metric collapse": {"metric_collapse"},
    "overfitting": {"overfitting"},
    "not learning": {"not_learning", "plateau_early"},
    "oscillating": {"oscillating"},
}
CODES = {
    "nan": ("non-finite-loss", "non-finite-gradient", "non-finite-weights", "non-finite-input"),
    "diverged": ("loss-divergence",),
    "metric collapse": ("metric-collapse", "metric-decline"),
    "overfitting": ("overfitting",),
    "not learning": ("not-learning", "underfitting", "loss-plateau", "constant-predictions"),
    "oscillating": ("loss-oscillation",),
}


def groups_of(findings: list[Finding]) -> set[str]:
    found = {group for group, codes in CODES.items() for finding in findings if finding.code in codes}
    for finding in findings:
        if finding.code == "loss-spike":
            found.add("spike recovered" if finding.evidence["recovered"] else "diverged")
    return found


def groups_in(labels: str) -> set[str]:
    words = set(filter(None, labels.split(";")))
    return {group for group, members in GROUPS.items() if words & members}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--confidence", default="high", help="which rows count: high, medium, low, or all")
    parser.add_argument("--misses", action="store_true", help="name each miss and false alarm")
    options = parser.parse_args()
    if not CORPUS.is_dir():
        print(f"skipped: {CORPUS} is not here")
        return 0
    rows = list(csv.DictReader((CORPUS / "labels.csv").open(encoding="utf-8")))
    counts: dict[str, Counter[str]] = {}
    picked: dict[str, Counter[str]] = {}
    healthy, peace, unread, begun = 0, 0, 0, time.perf_counter()
    for row in rows:
        try:
            findings = look_at(open_log(CORPUS / row["file"])[0])
        except HoldfastError as error:
            unread += 1
            print(f"unread: {row['file']}: {error.problem}")
            continue
        if options.confidence not in ("all", row["confidence"]):
            continue
        truth, ignored = groups_in(row["labels"]), groups_in(row["dont_care"])
        seen = groups_of(findings)
        for group in GROUPS:
            kind = "hit" if group in truth & seen else "missed" if group in truth else "false" if group in seen - ignored else ""
            if kind:
                counts.setdefault(group, Counter())[kind] += 1
                picked.setdefault(row["picked_by"], Counter())[kind] += 1
                if options.misses and kind != "hit":
                    print(f"{kind:6} {group:16} {row['file']:22} {row['labels']} ({row['dont_care']}): {row['reason'][:90]}")
        if "healthy" in row["labels"].split(";"):
            healthy += 1
            peace += not any(finding.severity != "info" for finding in findings)
    return report(counts, picked, healthy, peace, unread, time.perf_counter() - begun)


def report(
    counts: dict[str, Counter[str]], picked: dict[str, Counter[str]], healthy: int, peace: int, unread: int, seconds: float
) -> int:
    print(f"{'':18}{'hit':>5}{'missed':>8}{'false':>7}{'precision':>11}{'recall':>8}{'F1':>6}")
    total: Counter[str] = Counter()
    for group, count in counts.items():
        total += count
        print(line(group, count))
    for name, count in picked.items():
        print(line(f"({name})", count))
    print(line("all", total))
    print(f"healthy in peace: {peace} of {healthy}; unread: {unread}; {seconds:.1f} s")
    precision, _, f1 = scores(total)
    bars = {
        "F1 >= 0.90": f1 >= 0.90,
        "precision >= 0.95": precision >= 0.95,
        "all in peace": peace == healthy,
        "all read": not unread,
    }
    for bar, met in bars.items():
        print(f"{'ok    ' if met else 'MISSED'} {bar}")
    return 0 if all(bars.values()) else 1


def scores(count: Counter[str]) -> tuple[float, float, float]:
    precision = count["hit"] / max(1, count["hit"] + count["false"])
    recall = count["hit"] / max(1, count["hit"] + count["missed"])
    return precision, recall, 2 * precision * recall / max(1e-9, precision + recall)


def line(name: str, count: Counter[str]) -> str:
    precision, recall, f1 = scores(count)
    return f"{name:18}{count['hit']:5}{count['missed']:8}{count['false']:7}{precision:11.2f}{recall:8.2f}{f1:6.2f}"


if __name__ == "__main__":
    sys.exit(main())
