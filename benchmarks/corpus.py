"""Score the diagnosis on 198 real logs of strangers, labelled by hand (`../shared/corpus`): run `benchmarks/corpus.py`.

Thresholds are cross-validated: for each of five folds they are chosen on the logs of the other four, and no repository is in two
folds. Rules were written by looking at some of the logs; `unseen` ones never were, their misses are never named, and they have a
line of their own. Rows whose confidence is high count; a label under `dont_care` counts neither way.
"""

from __future__ import annotations

import argparse
import csv
import inspect
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from holdfast.detectors.curves.order import OF_CURVES, TOO_SHORT
from holdfast.detectors.finding import Finding
from holdfast.errors import HoldfastError
from holdfast.logs.open import open_log
from holdfast.signals.curves import Curves

CORPUS = Path(__file__).parents[2] / "shared" / "corpus"
FOLDS = 5
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
CHOICES: dict[
    str, dict[str, Sequence[float]]
] = {  # what each threshold may be; the one in the code comes first where several fit
    "divergence": {
        "lost": (0.6, 0.7, 0.8, 0.9),
        "above": (0.3, 0.4, 0.5, 0.7),
        "untaught": (0.3, 0.4, 0.6, 1.0),
        "sigmas": (2.0, 3.0, 6.0),
    },
    "collapse": {"lost": (0.5, 0.65, 0.8), "drop": (0.2, 0.25, 0.35), "decline": (0.3, 0.4, 0.5), "sigmas": (2.0, 3.0, 4.0, 6.0)},
    "overfitting": {"rise": (0.02, 0.04, 0.06), "sigmas": (2.0, 3.0, 4.0), "by": (0.7, 0.8, 0.9), "still": (0.0, 0.05, 0.1)},
    "flat": {"at_least": (8, 12, 16), "moved": (0.01, 0.02, 0.04), "above": (0.15, 0.25, 0.4)},
    "never_off_the_ground": {"at_least": (10, 20, 30), "ground": (0.005, 0.01, 0.02), "underfit": (0.02, 0.05, 0.08)},
    "oscillation": {"swing": (0.08, 0.1, 0.12, 0.15, 0.2), "share": (0.06, 0.08, 0.1, 0.15), "drift": (0.5, 1.0, 2.0, 4.0)},
    "spikes": {
        "sigmas": (5.0, 6.0, 8.0, 10.0),
        "share": (0.1, 0.15, 0.25),
        "back": (0.15, 0.25, 0.35),
        "held_out": (1.4, 1.6, 2.0),
    },
}
Setting = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Log:
    """One log and what a person said about it."""

    file: str
    repo: str
    labels: frozenset[str]
    truth: frozenset[str]
    ignored: frozenset[str]
    reason: str
    unseen: bool
    curves: Curves | None

    @property
    def healthy(self) -> bool:
        return "healthy" in self.labels


def read(confidence: str) -> Iterator[Log]:
    """All logs whose label is that certain."""
    for folder in (CORPUS, CORPUS / "second"):
        with (folder / "labels.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if confidence not in ("all", row["confidence"]):
                    continue
                try:
                    curves = open_log(folder / row["file"])[0]
                except HoldfastError as error:
                    print(f"unread: {row['file']}: {error.problem}")
                    curves = None
                yield Log(
                    file=f"{folder.name}/{row['file']}",
                    repo=row["repo"],
                    labels=frozenset(row["labels"].split(";")),
                    truth=groups_in(row["labels"]),
                    ignored=groups_in(row["dont_care"]),
                    reason=row["reason"],
                    unseen=folder != CORPUS and zlib.crc32(row["repo"].encode()) % 4 == 1,
                    curves=curves,
                )


def groups_in(labels: str) -> frozenset[str]:
    words = set(filter(None, labels.split(";")))
    return frozenset(group for group, members in GROUPS.items() if words & members)


def groups_of(findings: Sequence[Finding]) -> frozenset[str]:
    found = {group for group, codes in CODES.items() for finding in findings if finding.code in codes}
    for finding in findings:
        if finding.code == "loss-spike":
            found.add("spike recovered" if finding.evidence["recovered"] else "diverged")
    return frozenset(found)


class Scores:
    """What each detector says of each log, for each choice of its thresholds."""

    def __init__(self, logs: Sequence[Log]) -> None:
        self.logs = logs
        self.said = cache(self._said)

    def _said(self, name: str, setting: Setting, place: int) -> tuple[frozenset[str], bool]:
        """The groups that a detector sees in a log, and whether it raises an alarm."""
        curves = self.logs[place].curves
        detector: Callable[..., Iterator[Finding]] = next(one for one in OF_CURVES if one.__name__ == name)
        if curves is None or (curves.points < TOO_SHORT and name != "non_finite"):
            return frozenset(), False
        findings = list(detector(curves, **dict(setting)))
        return groups_of(findings), any(finding.severity != "info" for finding in findings)

    def chosen(self, name: str, places: Sequence[int]) -> Setting:
        """The thresholds that do best on these logs; those of the code where others do no better."""
        choices = CHOICES.get(name, {})
        setting: dict[str, Any] = {key: default_of(name, key) for key in choices}
        best = self._worth(name, setting, places)
        for _ in range(2):
            for key, values in choices.items():
                for value in values:
                    other = {**setting, key: value}
                    worth = self._worth(name, other, places)
                    if worth > best:
                        setting, best = other, worth
        return tuple(setting.items())

    def _worth(self, name: str, setting: dict[str, Any], places: Sequence[int]) -> float:
        """Hits less false alarms; a false alarm weighs more, because precision is the higher bar."""
        worth = 0.0
        for place in places:
            log = self.logs[place]
            seen, alarm = self.said(name, tuple(setting.items()), place)
            worth += len(seen & log.truth) - 2 * len(seen - log.truth - log.ignored) - 2 * (alarm and log.healthy)
        return worth


def default_of(name: str, key: str) -> Any:
    detector = next(one for one in OF_CURVES if one.__name__ == name)
    return inspect.signature(detector).parameters[key].default


def folds_of(logs: Sequence[Log]) -> list[int]:
    """The fold of each log: repositories in an order that means nothing, dealt out one by one."""
    repos = sorted({log.repo for log in logs}, key=lambda repo: zlib.crc32(repo.encode()))
    fold = {repo: place % FOLDS for place, repo in enumerate(repos)}
    return [fold[log.repo] for log in logs]


def out_of_fold(logs: Sequence[Log], *, show: bool) -> list[tuple[frozenset[str], bool]]:
    """What is seen in each log with thresholds that were chosen without its fold."""
    scores, folds = Scores(logs), folds_of(logs)
    seen: list[tuple[frozenset[str], bool]] = [(frozenset(), False)] * len(logs)
    for fold in range(FOLDS):
        others = [place for place in range(len(logs)) if folds[place] != fold]
        for detector in OF_CURVES:
            name = detector.__name__
            setting = scores.chosen(name, others)
            changed = {key: value for key, value in setting if value != default_of(name, key)}
            if show and changed:
                print(f"fold {fold}: {name} {changed}")
            for place in (place for place in range(len(logs)) if folds[place] == fold):
                groups, alarm = scores.said(name, setting, place)
                seen[place] = (seen[place][0] | groups, seen[place][1] or alarm)
    return seen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--confidence", default="high", help="which rows count: high, medium, low, or all")
    parser.add_argument("--misses", action="store_true", help="name misses and false alarms, but those of unseen logs")
    parser.add_argument(
        "--thresholds", action="store_true", help="print which thresholds each fold chooses, where not those of the code"
    )
    options = parser.parse_args()
    if not CORPUS.is_dir():
        print(f"skipped: {CORPUS} is not here")
        return 0
    begun = time.perf_counter()
    logs = list(read(options.confidence))
    seen = out_of_fold(logs, show=options.thresholds)
    if options.misses:
        for log, (groups, alarm) in zip(logs, seen, strict=True):
            wrong = {f"missed {group}" for group in log.truth - groups}
            wrong |= {f"false {group}" for group in groups - log.truth - log.ignored} | (
                {"alarm"} if log.healthy and alarm else set()
            )
            if wrong and not log.unseen:
                print(f"{log.file:28} {', '.join(sorted(wrong))}: {log.reason[:100]}")
    report("out of fold, all", logs, seen)
    unseen = [place for place, log in enumerate(logs) if log.unseen]
    report("out of fold, never looked at", [logs[place] for place in unseen], [seen[place] for place in unseen], groups=False)
    print(f"{time.perf_counter() - begun:.1f} s")
    return bars(logs, seen)


def report(name: str, logs: Sequence[Log], seen: Sequence[tuple[frozenset[str], bool]], *, groups: bool = True) -> None:
    total: Counter[str] = Counter()
    print(f"{name + f' ({len(logs)} logs)':40}{'hit':>5}{'missed':>8}{'false':>7}{'precision':>11}{'recall':>8}{'F1':>6}")
    for group in GROUPS:
        count = count_of(group, logs, seen)
        total += count
        if groups:
            print(line(f"  {group}", count))
    print(line("  all", total))
    healthy = [alarm for log, (_, alarm) in zip(logs, seen, strict=True) if log.healthy]
    print(f"  healthy without an alarm: {healthy.count(False)} of {len(healthy)}")


def count_of(group: str, logs: Sequence[Log], seen: Sequence[tuple[frozenset[str], bool]]) -> Counter[str]:
    count: Counter[str] = Counter()
    for log, (found, _) in zip(logs, seen, strict=True):
        if group in log.truth:
            count["hit" if group in found else "missed"] += 1
        elif group in found - log.ignored:
            count["false"] += 1
    return count


def bars(logs: Sequence[Log], seen: Sequence[tuple[frozenset[str], bool]]) -> int:
    total = sum((count_of(group, logs, seen) for group in GROUPS), Counter[str]())
    precision, _, f1 = scores(total)
    met = {
        "precision >= 0.95": precision >= 0.95,
        "F1 >= 0.90": f1 >= 0.90,
        "no alarm on a healthy log": not any(log.healthy and alarm for log, (_, alarm) in zip(logs, seen, strict=True)),
        "all read": all(log.curves is not None for log in logs),
    }
    for bar, is_met in met.items():
        print(f"{'ok    ' if is_met else 'MISSED'} {bar}")
    return 0 if all(met.values()) else 1


def scores(count: Counter[str]) -> tuple[float, float, float]:
    precision = count["hit"] / max(1, count["hit"] + count["false"])
    recall = count["hit"] / max(1, count["hit"] + count["missed"])
    return precision, recall, 2 * precision * recall / max(1e-9, precision + recall)


def line(name: str, count: Counter[str]) -> str:
    precision, recall, f1 = scores(count)
    return f"{name:40}{count['hit']:5}{count['missed']:8}{count['false']:7}{precision:11.2f}{recall:8.2f}{f1:6.2f}"


if __name__ == "__main__":
    sys.exit(main())
