"""Metrics of the live runs, rank by rank; findings and actions as counters. `/metrics` has them in Prometheus' text format."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.probe.glance import Glance
from holdfast.web.runs import Runs, Watched, tone

KIND = "text/plain; version=0.0.4; charset=utf-8"
_ENDED_SECONDS = 600.0  # a finished run is exposed for so long, so that its end is scraped
_OF_RANK = {
    "step": ("holdfast_step", "newest step"),
    "epoch": ("holdfast_epoch", "complete epochs before the newest step"),
    "loss": ("holdfast_loss", "training loss of the newest step"),
    "grad_norm": ("holdfast_gradient_norm", "norm of all gradients together, before clipping"),
    "lr": ("holdfast_learning_rate", "learning rate of the first parameter group"),
    "rate": ("holdfast_steps_per_second", "steps per second over the last 50 steps"),
    "age": ("holdfast_last_step_age_seconds", "seconds since the newest step"),
    "data_share": ("holdfast_data_wait_ratio", "part of the step time that was spent waiting for data"),
    "budget": ("holdfast_overhead_ratio", "part of the step time that was spent in Holdfast"),
    "gpu_memory": ("holdfast_gpu_memory_bytes", "bytes that tensors hold on the rank's GPU"),
    "host_memory": ("holdfast_host_memory_bytes", "resident memory of the rank's process"),
}
_OF_RUN = {
    "holdfast_up": ("gauge", "1 while the run is alive"),
    "holdfast_healthy": ("gauge", "1 if nothing is wrong, 0.5 for a warning, 0 for something critical"),
    "holdfast_evaluation": ("gauge", "newest value of each metric"),
    "holdfast_gpu_utilisation_ratio": ("gauge", "mean utilisation of the machine's GPUs"),
    "holdfast_findings_total": ("counter", "findings, by code and severity"),
    "holdfast_actions_total": ("counter", "actions, by kind and state"),
    "holdfast_skipped_updates_total": ("counter", "updates that were skipped"),
    "holdfast_roll_backs_total": ("counter", "times the training was rolled back"),
}
Sample = tuple[str, Mapping[str, Any], float]


METRICS = {**{name: ("gauge", text) for name, text in _OF_RANK.values()}, **_OF_RUN}  # name -> kind, help


def samples(runs: Runs) -> dict[str, list[Sample]]:
    """Every sample of the runs of this machine, by the name of its metric."""
    by_name: dict[str, list[Sample]] = {name: [] for name in METRICS}
    for known_as, run in runs.here().items():
        for sample in _samples(runs.find(known_as), known_as, str(run.info().get("host") or "")):
            by_name[sample[0]].append(sample)
    return by_name


def exposition(runs: Runs) -> str:
    """All of them as text."""
    lines = []
    for name, rows in samples(runs).items():
        if rows:
            kind, text = METRICS[name]
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{{{_labels(labels)}}} {_number(value)}" for _, labels, value in rows]
    return "\n".join(lines) + "\n"


def _samples(watched: Watched, known_as: str, host: str) -> Iterator[Sample]:
    glance = watched.look()
    state, whose = glance.state, {"run": known_as, "host": host}
    if not state.alive and time.time() - (state.ended or 0.0) > _ENDED_SECONDS:
        return
    yield "holdfast_up", whose, float(state.alive)
    yield "holdfast_healthy", whose, {"bad": 0.0, "warn": 0.5}.get(tone(state.health), 1.0)
    for rank in state.ranks:
        for field, (name, _) in _OF_RANK.items():
            if (value := getattr(rank, field)) is not None and (field != "epoch" or value >= 0):
                yield name, {**whose, "rank": rank.rank}, float(value)
    yield from _counters(glance, whose)
    newest = {(entry["split"], name): value for entry in glance.evaluations for name, value in entry["metrics"].items()}
    for (split, metric), value in newest.items():
        yield "holdfast_evaluation", {**whose, "split": split, "metric": metric}, value
    if (gpu := watched.row(known_as)["gpu"]) is not None:
        yield "holdfast_gpu_utilisation_ratio", whose, gpu


def _counters(glance: Glance, whose: Mapping[str, Any]) -> Iterator[Sample]:
    findings = Counter((event.code, event.severity) for event in glance.events if event.kind == "finding")
    actions = Counter((event.code, event.state) for event in glance.events if event.kind == "action")
    for (code, severity), count in findings.items():
        yield "holdfast_findings_total", {**whose, "code": code, "severity": severity}, count
    for (code, state), count in actions.items():
        yield "holdfast_actions_total", {**whose, "action": code, "state": state}, count
    yield "holdfast_skipped_updates_total", whose, glance.state.num_skipped
    yield "holdfast_roll_backs_total", whose, glance.state.roll_backs


def _labels(labels: Mapping[str, Any]) -> str:
    return ",".join(f'{name}="{_escaped(str(value))}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else "+Inf" if value > 0 else "-Inf"
