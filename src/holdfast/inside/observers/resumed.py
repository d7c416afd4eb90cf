"""Whether a training that begins goes on from a checkpoint, from which one, and what of it was put back.

Fine-tuning is no resume: weights come from a file there too. So it is one only if the optimizer got its state back, or the file
was saved by an earlier run of the same script here, or the script says so.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.inside.taps.loads import IntoModule, LoadedFile, Loads
from holdfast.signals.lineage import Save, find_save, same_script, whole_steps
from holdfast.signals.recorder import Recorder
from holdfast.state.related_objects import find_related_objects

Optimizer = torch.optim.Optimizer
_FEW = 4  # parameters of a model that are looked for in files
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def facts_of(
    loads: Loads, models: list[nn.Module], optimizer: Optimizer, said: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """What was put back into a training before its first step, and what the script said about it; None if nothing was."""
    weights, file = _weights(loads, models)
    file = file or loads.file_for(optimizer)
    if weights is None and said is None and not loads.was_put_into(optimizer):
        return None
    found = find_related_objects(models, [optimizer])
    return {
        "path": file.path if file is not None else None,
        "weights": weights,
        "optimizer": _optimizer(loads, optimizer),
        "scheduler": _loaded([_has_stepped(one) for one in found.schedulers]),
        "scaler": _loaded([loads.was_put_into(one) for one in found.scalers]),
        "lr": float(optimizer.param_groups[0].get("lr") or 0.0),
        **(said or {}),
    }


def is_resume(facts: Mapping[str, Any], save: Save | None, run: Path, started: float) -> str | None:
    """What makes it a resume, in a word; None if it is none."""
    if facts.get("by") == "script":
        return "script"
    weights = facts["weights"]
    if facts["optimizer"] == "loaded" and (facts["path"] is not None or weights is not None):
        return "optimizer"
    if save is None or weights is None or (save.run == run and save.time >= started):
        return None  # a file of this very process: begun anew from the same weights
    another_head = 0 < weights["missing"] < weights["of"]
    return "saved here" if same_script(_info(run), _info(save.run)) and not another_head else None


def report_resumed(recorder: Recorder, facts: dict[str, Any], *, since: float, step: int = 0) -> None:
    """Write the row, if it is a resume; `step` is the number of the first step that is recorded."""
    row = resumed_row(facts, recorder.run.path, started=since)
    if row is not None:
        recording = recorder.recording
        with contextlib.suppress(OSError):
            recorder.run.journal.write(
                "checkpoint", event="resumed", rank=recording.rank, step=step, recording=recording.name, **row
            )


def resumed_row(facts: dict[str, Any], run: Path, *, started: float) -> dict[str, Any] | None:
    """The row for the journal, with the run before if one of those here has saved the file. Reads journals: not for a loop."""
    path = facts["path"]
    save = find_save(run, path, until=time.time()) if path is not None else None
    by = is_resume(facts, save, run, started)
    if by is None:
        return None
    row = {**facts, "by": by}
    if save is not None:
        row["before"] = {
            "run": str(save.run), "recording": save.recording, "step": save.step, "time": save.time, "exact": save.exact
        }  # fmt: skip
        if (at := whole_steps(save)) is not None:
            row["at"] = at
    return row


def _weights(loads: Loads, models: list[nn.Module]) -> tuple[dict[str, int] | None, LoadedFile | None]:
    """How many parameters and statistics got a value, over all that was put into these models, and from which file."""
    parameters = {id(parameter) for model in models for parameter in model.parameters()}
    loaded: set[int] = set()
    statistics = unexpected = 0
    file, seen = None, False
    for into in loads.modules:
        module = into.module()
        if module is None or not any(id(parameter) in parameters for parameter in module.parameters()):
            continue
        seen, file = True, into.file or file
        loaded |= {id(p) for name, p in module.named_parameters(remove_duplicate=False) if name not in into.missing}
        statistics = _missing_statistics(into)
        unexpected += into.unexpected
    if not seen:
        some = [p for model in models for p in islice(model.parameters(), _FEW)]
        whole = next((found for p in some if (found := loads.whole_in(p)) is not None), None)
        if whole is None:
            return None, None
        loaded, file = parameters, whole
    missing = len(parameters - loaded)
    return {"of": len(parameters), "missing": missing, "missing_statistics": statistics, "unexpected": unexpected}, file


def _missing_statistics(into: IntoModule) -> int:
    return sum(name.endswith(_STATISTICS[:2]) for name in into.missing)


def _optimizer(loads: Loads, optimizer: Optimizer) -> str:
    """Whether its state was loaded, is empty, or is never anything but empty."""
    if type(optimizer) is torch.optim.SGD and not any(group.get("momentum") for group in optimizer.param_groups):
        return "loaded" if loads.was_put_into(optimizer) else "keeps nothing"
    if loads.was_put_into(optimizer) and any(optimizer.state.values()):
        return "loaded"
    return "empty"


def _has_stepped(scheduler: Any) -> bool:
    """Whether a schedule is under way before the first step; a state from the very beginning makes no difference."""
    return any(getattr(one, "last_epoch", 0) > 0 for one in (scheduler, *getattr(scheduler, "_schedulers", ())))


def _loaded(each: list[bool]) -> str | None:
    return None if not each else "loaded" if all(each) else "as new"


def _info(run: Path) -> dict[str, Any]:
    try:
        found = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
