"""Why memory runs out."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix

MICRO_BATCH_TOO_LARGE = Cause(
    code="micro-batch-too-large",
    seen_by=("gpu-out-of-memory",),
    because="The step did not fit into the GPU's memory.",
    likely=0.6,
    fixes=(Fix("halve the micro-batch and double the accumulation"),),
)
GRAPH_KEPT_ALIVE = Cause(
    code="graph-kept-alive",
    seen_by=("gpu-memory-growth", "gpu-out-of-memory"),
    signs=("memory-grows",),
    because="Memory grows from step to step: tensors of earlier steps are still held.",
    likely=0.3,
    fixes=(
        Fix("keep `loss.item()`, not the loss itself; look for lists and hooks that hold on to outputs"),
        Fix("clear gradients to None", setting="set_to_none", op="set", value=True),
    ),
)
TOO_MANY_WORKERS = Cause(
    code="too-many-workers",
    seen_by=("host-memory-growth", "host-out-of-memory"),
    signs=("workers-hold-most",),
    because="Most of the host's memory is held by loader workers.",
    likely=0.2,
    fixes=(Fix("use fewer loader workers", setting="num_workers", op="multiply", value=0.5),),
)
CACHE_IN_MEMORY = Cause(
    code="cache-in-memory",
    seen_by=("host-memory-growth", "host-out-of-memory"),
    signs=("grows-with-epoch-one",),
    because="Memory grows during the first pass over the data and then stays.",
    likely=0.2,
    fixes=(Fix("keep the cache on disk, or none", setting="cache", op="set", value="disk"),),
)
RESULTS_IN_MEMORY = Cause(
    code="results-in-memory",
    seen_by=("host-memory-growth", "host-out-of-memory"),
    signs=("grows-in-evaluation",),
    because="Memory grows during validation: predictions are collected (about 200 bytes each; 12 million take 2.4 GB).",
    likely=0.2,
    fixes=(Fix("write predictions to disk as they come, or validate on fewer samples"),),
)

OF_MEMORY = (MICRO_BATCH_TOO_LARGE, GRAPH_KEPT_ALIVE, TOO_MANY_WORKERS, CACHE_IN_MEMORY, RESULTS_IN_MEMORY)
