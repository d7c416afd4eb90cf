"""Whether a new training resumes from a checkpoint, from which one, and what of its state was restored.

Fine-tuning loads weights too. So it is a resume only if the optimizer got its state back, if an earlier run of the same script
saved the file here, or if the script says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.inside.taps.loads import LoadedFile, Loads
from holdfast.signals.lineage import Save, find_save, same_script, whole_steps
from holdfast.signals.recorder import Recorder
from holdfast.signals.run_folder import RunFolder
from holdfast.state.related_objects import find_related_objects

Optimizer = torch.optim.Optimizer
_SEARCHED_PARAMETERS = 4  # of each model, to find the file that a pickled model came from
_STATISTICS = ("running_mean", "running_var")


def loaded_state(
    loads: Loads, models: list[nn.Module], optimizer: Optimizer, origin: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """What was loaded into a training before its first step, and what the script said about it; None if nothing was."""
    weights, file = _loaded_weights(loads, models)
    file = file or loads.file_of(optimizer)
    if weights is None and origin is None and not loads.has_loaded(optimizer):
        return None
    related = find_related_objects(models, [optimizer])
    return {
        "path": file.path if file is not None else None,
        "weights": weights,
        "optimizer": _optimizer_status(loads, optimizer, unseen=origin is not None),
        "scheduler": _status([_has_stepped(scheduler) for scheduler in related.schedulers]),
        "scaler": _status([loads.has_loaded(scaler) for scaler in related.scalers]),
        "lr": float(optimizer.param_groups[0].get("lr") or 0.0),
        **(origin or {}),
    }


def report_resumed(recorder: Recorder, state: dict[str, Any], *, since: float, step: int = 0) -> None:
    """Write the `resumed` row, if it is a resume; `step` is the first step that is recorded."""
    row = _resumed_row(state, recorder.run.path, since)
    if row is not None:
        recording = recorder.recording
        with contextlib.suppress(OSError):
            recorder.run.journal.write(
                "checkpoint", event="resumed", rank=recording.rank, step=step, recording=recording.name, **row
            )


def _resumed_row(state: dict[str, Any], run: Path, since: float) -> dict[str, Any] | None:
    """The row, with the earlier run that saved the file, if any. Reads journals, so it is not for the training thread."""
    path = state["path"]
    save = find_save(run, path) if path is not None else None
    by = _reason(state, save, run, since)
    if by is None:
        return None
    row = {**state, "by": by}
    if save is not None:
        row["before"] = {
            "run": str(save.run), "recording": save.recording, "step": save.step, "time": save.time, "exact": save.exact
        }  # fmt: skip
        if (at := whole_steps(save)) is not None:
            row["at"] = at
    return row


def _reason(state: Mapping[str, Any], save: Save | None, run: Path, since: float) -> str | None:
    """What makes it a resume: `script`, `optimizer` or `saved here`; None if it is not one."""
    if state.get("by") == "script":
        return "script"
    weights = state["weights"]
    if state["optimizer"] == "loaded" and (state["path"] is not None or weights is not None):
        return "optimizer"
    if save is None or weights is None or (save.run == run and save.time >= since):
        return None  # this process saved the file: a new training from the same weights
    has_new_head = 0 < weights["missing"] < weights["of"]
    return "saved here" if same_script(RunFolder(run).info(), RunFolder(save.run).info()) and not has_new_head else None


def _loaded_weights(loads: Loads, models: list[nn.Module]) -> tuple[dict[str, int] | None, LoadedFile | None]:
    """How many parameters and running statistics of these models were loaded, and from which file."""
    parameters = {id(parameter) for model in models for parameter in model.parameters()}
    loaded: set[int] = set()
    statistics = unexpected = 0
    file, any_load = None, False
    for load in loads.modules:
        module = load.module()
        if module is None or not any(id(parameter) in parameters for parameter in module.parameters()):
            continue
        any_load, file = True, load.file or file
        loaded |= {id(p) for name, p in nn.Module.named_parameters(module, remove_duplicate=False) if name not in load.missing}
        statistics = sum(name.endswith(_STATISTICS) for name in load.missing)
        unexpected += load.unexpected
    if not any_load:
        searched = [p for model in models for p in islice(model.parameters(), _SEARCHED_PARAMETERS)]
        file = next(filter(None, map(loads.file_with, searched)), None)
        if file is None:
            return None, None
        loaded = parameters
    missing = len(parameters - loaded)
    return {"of": len(parameters), "missing": missing, "missing_statistics": statistics, "unexpected": unexpected}, file


def _optimizer_status(loads: Loads, optimizer: Optimizer, *, unseen: bool = False) -> str:
    """`loaded`, `empty`, or `keeps nothing` for an optimizer without state; `unseen`: it may have been loaded before `watch`."""
    if type(optimizer) is torch.optim.SGD and not any(group.get("momentum") for group in optimizer.param_groups):
        return "loaded" if loads.has_loaded(optimizer) else "keeps nothing"
    return "loaded" if (unseen or loads.has_loaded(optimizer)) and any(optimizer.state.values()) else "empty"


def _has_stepped(scheduler: Any) -> bool:
    """Whether a scheduler has stepped before the first step; one that has not may as well be new."""
    return any(getattr(part, "last_epoch", 0) > 0 for part in (scheduler, *getattr(scheduler, "_schedulers", ())))


def _status(loaded: list[bool]) -> str | None:
    return None if not loaded else "loaded" if all(loaded) else "as new"
