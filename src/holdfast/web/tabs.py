"""What stands in the tabs of a run's page: each a function from a run to plain values."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.diagnosis.checkup import Episode
from holdfast.diagnosis.curve_sentences import sentence
from holdfast.diagnosis.event_words import done_words
from holdfast.diagnosis.of_run import check_up_run
from holdfast.diagnosis.run_comparison import as_row, compare
from holdfast.diagnosis.saved_samples import described
from holdfast.logs.holdfast_run import read_run
from holdfast.probe.sources import LocalRun
from holdfast.probe.sql import query
from holdfast.probe.values import for_json
from holdfast.probe.words import finding_words
from holdfast.signals.curves import Curves
from holdfast.signals.run_folder import RunFolder
from holdfast.web.runs import Watched, marks

_BINS, _NAMES = 120, 400
_SECONDS = 20.0
GRIDS = {"step time": "step_seconds", "loss": "loss", "data wait": "data_seconds", "memory": "host_rss"}


def diagnosis(run: RunFolder) -> dict[str, Any]:
    """The check-up, in the words of `holdfast diagnose`."""
    checkup = check_up_run(run)
    return {
        "verdict": checkup.verdict,
        "repaired": checkup.repaired,
        "steps": checkup.curves.num_steps,
        "episodes": [_episode(episode, checkup.curves) for episode in checkup.episodes],
    }


def _episode(episode: Episode, curves: Curves) -> dict[str, Any]:
    findings = [
        {
            "code": finding.code,
            "name": finding_words(finding.code),
            "severity": finding.severity,
            "step": finding.onset,
            "words": sentence(finding, curves),
        }
        for finding in episode.findings
    ]
    causes = [
        {
            "code": row["cause"],
            "name": row["cause"].replace("-", " "),
            "sure": diagnosis.stated,
            "because": row["because"],
            "fixes": row["fixes"],
        }
        for diagnosis in episode.diagnoses
        for row in [for_json(diagnosis.as_row())]
    ]
    done = [{"words": done_words(action.event), "times": action.times, "step": action.event.step} for action in episode.done]
    return {"findings": findings, "causes": causes, "done": done}


def journal(watched: Watched) -> dict[str, Any]:
    """The newest events, as `holdfast journal` tells them."""
    events = marks(watched.look().events)
    return {"events": events[-1000:][::-1], "all": len(events)}


def parameters(watched: Watched) -> dict[str, Any]:
    """Gradient norms of every parameter over the run: the largest of each stretch of steps, NaN before all others."""
    sql = f"""
        WITH mine AS (SELECT step, name, grad_norm, non_finite FROM parameters WHERE rank = (SELECT min(rank) FROM parameters)),
             ends AS (SELECT min(step) AS low, max(step) AS high FROM mine),
             binned AS (SELECT name, grad_norm, non_finite,
                               CAST(floor((step - low) * {_BINS} / (high - low + 1)) AS INT) AS bin FROM mine, ends)
        SELECT name, bin, max(CASE WHEN isfinite(grad_norm) THEN grad_norm END), max(coalesce(non_finite, 0)),
               (SELECT low FROM ends), (SELECT high FROM ends)
        FROM binned GROUP BY name, bin"""
    rows = _rows(watched.run, sql, _NAMES * _BINS)
    return {**_grid([row[:4] for row in rows]), "low": rows[0][4] if rows else None, "high": rows[0][5] if rows else None}


def ranks(watched: Watched, what: str = "step time") -> dict[str, Any]:
    """A value of every rank over the run: the mean of each stretch of steps."""
    column = GRIDS.get(what, "step_seconds")
    sql = f"""
        WITH ends AS (SELECT min(step) AS low, max(step) AS high FROM steps),
             binned AS (SELECT rank, {column} AS value, CAST(floor((step - low) * {_BINS} / (high - low + 1)) AS INT) AS bin
                        FROM steps, ends)
        SELECT 'rank ' || rank, bin, avg(CASE WHEN isfinite(value) THEN value END),
               max(CASE WHEN value IS NOT NULL AND NOT isfinite(value) THEN 1 ELSE 0 END),
               (SELECT low FROM ends), (SELECT high FROM ends), min(rank)
        FROM binned GROUP BY rank, bin ORDER BY rank, bin"""
    rows = _rows(watched.run, sql, 1024 * _BINS)
    states = [
        {"rank": rank.rank, "pid": rank.pid, "step": rank.step, "loss": rank.loss, "rate": rank.rate,
         "data_share": rank.data_share, "health": rank.health, "reason": rank.reason}
        for rank in watched.look().state.ranks
    ]  # fmt: skip
    grid = _grid([row[:4] for row in rows])
    return {**grid, "low": rows[0][4] if rows else None, "high": rows[0][5] if rows else None, "states": states,
            "what": what, "choices": list(GRIDS)}  # fmt: skip


def _grid(rows: list[list[Any]]) -> dict[str, Any]:
    """Rows of name, bin, value, bad as one line of values for each name; a bad value is `"bad"`."""
    lines: dict[str, list[Any]] = {}
    for name, place, value, is_bad in rows:
        line = lines.setdefault(str(name), [None] * _BINS)
        good = isinstance(value, (int, float)) and math.isfinite(value)
        line[place] = "bad" if is_bad else float(f"{value:.4g}") if good else None
    return {"bins": _BINS, "lines": [{"name": name, "values": values} for name, values in list(lines.items())[:_NAMES]]}


def modules(watched: Watched) -> dict[str, Any]:
    """Where the time of a step goes, module by module, as measured on sampled steps."""
    sql = """
        SELECT module, avg(CASE WHEN stage = 'forward' THEN seconds END), avg(CASE WHEN stage = 'backward' THEN seconds END),
               count(DISTINCT step), max(gpu_allocated)
        FROM modules WHERE rank = (SELECT min(rank) FROM modules) GROUP BY module"""
    names = ("module", "forward", "backward", "samples", "gpu_allocated")
    rows = [dict(zip(names, row, strict=True)) for row in _rows(watched.run, sql, 2000)]
    return {"modules": sorted(rows, key=lambda row: -((row["forward"] or 0) + (row["backward"] or 0)))}


def data(watched: Watched) -> dict[str, Any]:
    """What the sampled batches held, and how the loader kept up."""
    fields = """
        SELECT split, field, count(*), avg(mean), avg(deviation), min(lowest), max(highest), avg(samples), avg(distinct_share),
               max(known_share)
        FROM (SELECT *, "distinct" * 1.0 / nullif(samples, 0) AS distinct_share FROM inputs)
        GROUP BY split, field ORDER BY 1, 2"""
    workers = """
        SELECT worker, count(*), sum(wait_seconds), avg(queue), max(rss), max(pinned), max(persistent)
        FROM loader GROUP BY worker ORDER BY worker"""
    names = ("split", "field", "batches", "mean", "deviation", "lowest", "highest", "samples", "distinct", "known_share")
    of_worker = ("worker", "rows", "waited", "queue", "rss", "pinned", "persistent")
    return {
        "fields": [dict(zip(names, row, strict=True)) for row in _rows(watched.run, fields, 500)],
        "workers": [dict(zip(of_worker, row, strict=True)) for row in _rows(watched.run, workers, 500)],
        "set": (watched.run.info().get("settings") or {}).get("data"),
        "saved": _saved(watched.run),
        "name": watched.run.name,
    }


def _saved(run: RunFolder) -> list[dict[str, Any]]:
    """Samples of the batches that were saved; read in another process, which loads torch."""
    if next(described(run), None) is None:
        return []
    command = [sys.executable, "-m", "holdfast.diagnosis.saved_samples", str(run.path)]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=3 * _SECONDS, check=False)
    return list(json.loads(done.stdout)) if done.returncode == 0 else []


def comparison(runs: Sequence[RunFolder], metric: str | None) -> dict[str, Any]:
    """Runs beside each other, as `holdfast compare` judges them."""
    answer: dict[str, Any] = for_json(as_row(compare([(read_run(run), run) for run in runs], metric=metric)))
    return answer


def environment(watched: Watched) -> dict[str, Any]:
    """What `run.json` says."""
    return {"info": for_json(watched.run.info()), "folder": str(watched.run.path)}


def _rows(run: RunFolder, sql: str, limit: int) -> list[list[Any]]:
    answer = query([LocalRun(run)], sql, limit=limit, timeout=_SECONDS)
    return [[for_json(value) for value in row] for row in answer.rows]


TABS: dict[str, Callable[..., dict[str, Any]]] = {
    "journal": journal,
    "parameters": parameters,
    "ranks": ranks,
    "modules": modules,
    "data": data,
    "environment": environment,
}
