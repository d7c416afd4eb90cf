"""How large a batch fits: two measured backward passes give the memory per sample, and that gives the rest."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from holdfast.errors import UsageError
from holdfast.train.devices import Place, to_device
from holdfast.train.optimize import Precision
from holdfast.train.settings import TrainSettings
from holdfast.train.task import Task
from holdfast.units import size

_MARGIN = 0.9  # of the memory that is free
_PROBES = (2, 4)  # samples; BatchNorm needs more than one value per channel
_ON_CPU = 16

SettingsT = TypeVar("SettingsT", bound=TrainSettings)


def decided(task: Task, settings: SettingsT, place: Place) -> SettingsT:
    """The settings with a batch size that is a number. On a GPU the memory is planned and printed."""
    samples = len(task.train_data())  # type: ignore[arg-type]
    if place.device.type != "cuda":
        return settings if settings.batch_size != "auto" else settings.with_changes(batch_size=min(_ON_CPU, samples))
    largest, per_sample, fixed, free = _plan(task, settings, place)
    if largest < 1:
        problem = f"a single sample needs {size(fixed + per_sample)}, and {size(free)} are free on {place.device}."
        raise UsageError(problem, fix="a smaller --imgsz or architecture, or --half bf16")
    everywhere = min(place.gather(largest)) * place.world_size
    if settings.batch_size == "auto":
        fits = min(_power_of_two(everywhere), samples // place.world_size * place.world_size)
        settings = settings.with_changes(batch_size=fits)
    if place.is_first:
        needed = size(fixed + per_sample * settings.batch / place.world_size, free)
        advice = "" if settings.batch <= everywhere else f"; a batch of {_power_of_two(everywhere)} fits, larger ones are split"
        print(f"holdfast: memory: about {needed} for a batch of {settings.batch}{advice}", flush=True)
    return settings


def _plan(task: Task, settings: TrainSettings, place: Place) -> tuple[int, float, float, float]:
    """The largest batch of one device, bytes per sample, fixed bytes, and free bytes."""
    model = task.model().to(place.device).train()
    precision = Precision(settings.half, place.device)
    data: Any = task.train_data()
    free = float(torch.cuda.mem_get_info(place.device)[0] + torch.cuda.memory_reserved(place.device))
    peaks = []
    for count in (_PROBES[0], *_PROBES):  # the first one also makes the gradients and cuDNN's workspace
        batch = to_device(task.collate([data[index % len(data)] for index in range(count)]), place.device)
        torch.cuda.reset_peak_memory_stats(place.device)
        with precision.autocast():
            loss = task.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        peaks.append(torch.cuda.max_memory_allocated(place.device))
    copies = (settings.ema > 0) + (2 if settings.optimizer == "adamw" else 1)  # no update is made: it would count as a step
    per_sample = max((peaks[2] - peaks[1]) / (_PROBES[1] - _PROBES[0]), 1.0)
    fixed = peaks[1] - _PROBES[0] * per_sample
    fixed += copies * sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    del model, batch, loss
    torch.cuda.empty_cache()
    return int((free * _MARGIN - fixed) / per_sample), per_sample, fixed, free


def _power_of_two(number: int) -> int:
    return 1 << max(0, number.bit_length() - 1)
