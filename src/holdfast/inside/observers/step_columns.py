"""Positions of the columns in a `steps` row, for values that are filled in later."""

from __future__ import annotations

from holdfast.signals.schema import STEPS

COLUMNS = _AT = {name: index for index, name in enumerate(STEPS.column_names)}

STEP, EPOCH, TIME = _AT["step"], _AT["epoch"], _AT["time"]
LOSS, LR, GRAD_NORM = _AT["loss"], _AT["lr"], _AT["grad_norm"]
WEIGHT_NORM, UPDATE_RATIO = _AT["weight_norm"], _AT["update_ratio"]
STEP_SECONDS, DATA_SECONDS, SAMPLES = _AT["step_seconds"], _AT["data_seconds"], _AT["samples"]
SKIPPED, SCALE, NON_FINITE = _AT["skipped"], _AT["scale"], _AT["non_finite"]
GPU_ALLOCATED, GPU_RESERVED, GPU_PEAK = _AT["gpu_allocated"], _AT["gpu_reserved"], _AT["gpu_peak"]
HOST_RSS, WORKERS_RSS = _AT["host_rss"], _AT["workers_rss"]
BACKWARDS, CLIP_NORM, HOLDFAST_SECONDS = _AT["backwards"], _AT["clip_norm"], _AT["holdfast_seconds"]
