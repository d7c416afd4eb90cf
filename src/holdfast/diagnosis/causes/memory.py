"""Why memory runs out."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix

MICRO_BATCH_TOO_LARGE = Cause(
    code="micro-batch-too-large",
    seen_by=("gpu-out-of-memory",),
    signs=("batch-above-good",),
    because="The step does not fit in GPU memory.",
    likely=0.6,
    fixes=(
        Fix("halve the micro-batch and double the accumulation", setting="batch_size", op="multiply", value=0.5),
        Fix("train in mixed precision", setting="dtype", op="set", value="bfloat16", ruled_out_by=("half-precision",)),
    ),
)
MODEL_TOO_LARGE = Cause(
    code="model-too-large",
    seen_by=("gpu-out-of-memory",),
    needs=("fixed-part-fills-it",),
    signs=("fixed-part-fills-it",),
    because="Weights, gradients and moments (16 bytes per parameter with Adam) fill the GPU before the first sample.",
    likely=0.15,
    fixes=(
        Fix("shard over several GPUs (FSDP), train only a part of the weights (LoRA), or use an 8-bit optimizer"),
        Fix("train in bfloat16", setting="dtype", op="set", value="bfloat16"),
    ),
)
SAMPLE_TOO_LARGE = Cause(
    code="sample-too-large",
    seen_by=("gpu-out-of-memory",),
    needs=("one-sample-fills-it",),
    signs=("one-sample-fills-it",),
    because="A single image or sequence is so large that its activations do not fit.",
    likely=0.15,
    fixes=(
        Fix("use smaller images, shorter sequences, or tiles", setting="imgsz", op="multiply", value=0.75),
        Fix("recompute activations in the backward pass (torch.utils.checkpoint)"),
    ),
)
MEMORY_FRAGMENTED = Cause(
    code="memory-fragmented",
    seen_by=("gpu-out-of-memory",),
    needs=("reserved-but-unused",),
    signs=("reserved-but-unused",),
    because="GPU memory is fragmented: PyTorch has reserved enough of it, but not in one piece.",
    likely=0.1,
    fixes=(
        Fix("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        Fix("pad batches to a few lengths"),
    ),
)
CARD_SHARED = Cause(
    code="card-shared",
    seen_by=("gpu-out-of-memory", "low-gpu-utilisation", "straggler"),
    needs=("other-processes",),
    signs=("other-processes",),
    because="Another process uses the GPU, perhaps left over from an earlier run.",
    likely=0.1,
    fixes=(Fix("find other processes with nvidia-smi, and kill leftovers of earlier runs"),),
)
GRAPH_KEPT_ALIVE = Cause(
    code="graph-kept-alive",
    seen_by=("gpu-memory-growth", "gpu-out-of-memory", "host-memory-growth"),
    needs=("memory-grows",),
    signs=("memory-grows",),
    against=("grows-with-epoch-one", "grows-in-evaluation"),
    because="Memory grows from step to step: tensors of earlier steps are still held.",
    likely=0.3,
    fixes=(
        Fix("keep `loss.item()`, not the loss itself; remove lists and hooks that keep outputs"),
        Fix("call backward without retain_graph", setting="retain_graph", op="set", value=False),
        Fix("free memory without a restart: gc.collect(); torch.cuda.empty_cache()"),
    ),
)
TOO_MANY_WORKERS = Cause(
    code="too-many-workers",
    seen_by=("host-memory-growth", "host-out-of-memory"),
    needs_one=("workers-hold-most", "workers-above-good"),
    signs=("workers-hold-most", "workers-above-good"),
    ruled_out_by=("no-loader-workers",),
    against=("memory-was-even",),
    because="Each loader worker needs its own host memory.",
    likely=0.2,
    fixes=(Fix("use fewer loader workers", setting="num_workers", op="multiply", value=0.5),),
)
CACHE_IN_MEMORY = Cause(
    code="cache-in-memory",
    seen_by=("host-memory-growth", "host-out-of-memory"),
    needs=("grows-with-epoch-one",),
    signs=("grows-with-epoch-one",),
    against=("memory-was-even",),
    because="Memory grows during the first epoch: samples may be cached as they are read.",
    likely=0.2,
    fixes=(Fix("keep the cache on disk, or disable it", setting="cache", op="set", value="disk"),),
)
RESULTS_IN_MEMORY = Cause(
    code="results-in-memory",
    seen_by=("host-memory-growth", "host-out-of-memory"),
    needs=("grows-in-evaluation",),
    signs=("grows-in-evaluation",),
    against=("memory-was-even",),
    because="Memory grows during validation: predictions are collected (about 200 bytes each; 12 million take 2.4 GB).",
    likely=0.2,
    fixes=(Fix("write predictions to disk as they come, or validate on fewer samples"),),
)
PART_OF_CARD = Cause(
    code="part-of-the-card",
    seen_by=("gpu-out-of-memory",),
    needs=("part-of-the-card-allowed",),
    signs=("part-of-the-card-allowed",),
    because="The process may use only part of the GPU: set_per_process_memory_fraction, or an allocator limit.",
    likely=0.5,
    fixes=(Fix("allow more: torch.cuda.set_per_process_memory_fraction(1.0); check PYTORCH_CUDA_ALLOC_CONF"),),
)
LIMIT_ON_PROCESS = Cause(
    code="limit-on-the-process",
    seen_by=("host-out-of-memory",),
    needs=("machine-had-room",),
    signs=("machine-had-room",),
    because="The machine had free memory that the process could not get: a shell or job limit, or one huge request.",
    likely=0.25,
    fixes=(
        Fix("check the limits where it runs: ulimit -a; cat /sys/fs/cgroup/memory.max; the job's --mem"),
        Fix("if the message requests many GB at once, that is one tensor: use a smaller batch, or correct its shape"),
    ),
)
HOST_LEAK = Cause(
    code="host-memory-leak",
    seen_by=("host-memory-growth", "host-out-of-memory"),
    signs=("memory-grows",),
    against=("grows-in-evaluation",),
    ruled_out_by=("memory-was-even",),
    because="Something is kept for every step or sample: losses with their graphs, an unbounded cache, open files.",
    likely=0.15,
    fixes=(
        Fix("keep numbers, not tensors: loss.item()"),
        Fix("use arrays instead of lists of Python objects in the data set: workers copy the lists page by page"),
    ),
)

OF_MEMORY = (
    MICRO_BATCH_TOO_LARGE,
    GRAPH_KEPT_ALIVE,
    MODEL_TOO_LARGE,
    SAMPLE_TOO_LARGE,
    MEMORY_FRAGMENTED,
    CARD_SHARED,
    PART_OF_CARD,
    TOO_MANY_WORKERS,
    CACHE_IN_MEMORY,
    RESULTS_IN_MEMORY,
    LIMIT_ON_PROCESS,
    HOST_LEAK,
)
