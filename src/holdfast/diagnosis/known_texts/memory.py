"""Texts of memory that ran out, on the GPU or on the host."""

from __future__ import annotations

from holdfast.diagnosis.known_texts.known_text import FOLLOWS, KnownText, Pattern
from holdfast.memory_errors import GPU_LIBRARY_TEXTS, GPU_TEXTS, HOST_TEXTS, NO_ENGINE_TEXTS

OF_MEMORY = (
    KnownText(
        "gpu-out-of-memory",
        (*GPU_TEXTS, *GPU_LIBRARY_TEXTS),
        "gpu-out-of-memory",
        "The step needs more memory than the GPU has free.",
        "Halve the batch and double the accumulation, or let Holdfast split it (`@run.step`, policy heal). If the same batch"
        " used to fit, look for another process on the GPU (nvidia-smi) and for losses kept with their graph.",
    ),
    KnownText(
        "no-cudnn-algorithm",
        NO_ENGINE_TEXTS,
        "gpu-out-of-memory",
        "No convolution algorithm fits: nearly always too little GPU memory is left for its workspace.",
        "Use a smaller batch. Else set torch.backends.cudnn.benchmark = False, and check the dtype of the input.",
    ),
    KnownText(
        "host-out-of-memory",
        (*HOST_TEXTS, "Unable to allocate * for an array with shape", "^MemoryError"),
        "host-out-of-memory",
        "The host ran out of memory, not the GPU.",
        "Use fewer loader workers, keep no data set and no predictions in memory, or request more memory.",
    ),
    KnownText(
        "killed-for-memory",
        (
            "Out of memory: Killed process",
            "oom_kill event",
            "oom-kill",
            "oom_kill",
            "OOMKilled",
            "Exceeded job memory limit",
            "Exceeded step memory limit",
            "memory cgroup out of memory",
        ),
        "host-out-of-memory",
        "The system or the job's memory limit ended the process because the host's memory ran out.",
        "Use fewer loader workers, keep no data set and no predictions in memory, or request more memory.",
    ),
    KnownText(
        "killed",
        (
            "^Killed$",
            "line *: * Killed",
            Pattern(r"^\s*(?:\[[^\]]{1,60}\]:?\s*){1,3}[-+]?\s*\d+\s+killed\b", ("killed",)),
            "exit code 137",
            "exit code: 137",
            "exited with code 137",
            "exit status 137",
            Pattern(r"exitcode\s*: -9\b", ("exitcode",)),
            "Signal 9 (SIGKILL)",
            "died with <Signals.SIGKILL",
        ),
        "host-out-of-memory",
        "SIGKILL ended the process (exit 137), nearly always because the host ran out of memory.",
        "`dmesg -T | grep -i oom` or the job's report says whether it was memory. Then use fewer workers and no cache in"
        " memory, or request more memory.",
    ),
    KnownText(
        "no-more-threads",
        ("can't start new thread", "pthread_create failed", "blas_thread_init", "Resource temporarily unavailable"),
        "host-out-of-memory",
        "The limit on processes and threads is reached, or there is no memory for one more.",
        "Set OMP_NUM_THREADS=1 for the loader workers, use fewer workers, or raise `ulimit -u`.",
        FOLLOWS,
    ),
)
