"""Causes of errors that end a script: recognised by their message, not measured."""

from __future__ import annotations

from holdfast.diagnosis.causes.cause import Cause, Fix


def _of_error(code: str, page: str, because: str, *fixes: str, likely: float = 0.3, **more: tuple[str, ...]) -> Cause:
    return Cause(code=code, seen_by=(page,), because=because, likely=likely, fixes=tuple(Fix(text) for text in fixes), **more)


OF_ERRORS = (
    _of_error(
        "build-too-old-for-the-card",
        "cuda-build-mismatch",
        "The GPU is newer than the PyTorch build, which has no kernels for it.",
        "install a build whose torch.cuda.get_arch_list() includes the GPU's capability",
    ),
    _of_error(
        "driver-too-old",
        "cuda-build-mismatch",
        "The build needs a newer CUDA version than the driver supports.",
        "update the driver, or install a build for an older CUDA version",
    ),
    _of_error(
        "two-cudas",
        "cuda-build-mismatch",
        "Libraries of a different CUDA version come first on the library path.",
        "unset LD_LIBRARY_PATH; use one environment per CUDA version",
        likely=0.2,
    ),
    _of_error(
        "versions-do-not-fit",
        "broken-install",
        "Packages with compiled code were built for other versions of each other.",
        "install them together in a fresh environment; pip check lists conflicts",
        likely=0.4,
    ),
    _of_error(
        "system-too-old",
        "broken-install",
        "The package was built on a newer Linux.",
        "use an older build, conda's own libraries, or a container",
        likely=0.2,
    ),
    _of_error(
        "other-python",
        "broken-install",
        "The package is installed in a different Python environment.",
        "use `python -m pip` with the python that runs the script",
        likely=0.2,
    ),
    _of_error(
        "index-beyond-the-end",
        "device-side-assert",
        "A label, token or index is out of range.",
        "run one batch on the CPU: the message there is clear",
        likely=0.5,
    ),
    _of_error(
        "kernel-with-a-bug",
        "device-side-assert",
        "A kernel (your own, a package's or a compiled one) accesses memory out of bounds.",
        "run without torch.compile and without that package; compute-sanitizer python train.py",
        likely=0.2,
    ),
    _of_error(
        "card-is-failing",
        "device-side-assert",
        "The GPU may be faulty, if the same job works on another GPU.",
        "check nvidia-smi -q -d ECC and dmesg -T | grep Xid; use another GPU",
        likely=0.1,
    ),
    _of_error(
        "changed-in-place",
        "graph-error",
        "A tensor that the backward pass needs was changed in place.",
        "x = x + y instead of x += y; torch.autograd.set_detect_anomaly(True) names the line",
    ),
    _of_error(
        "state-of-an-earlier-step",
        "graph-error",
        "A hidden state, a running sum or a loss of an earlier step is still attached to its graph.",
        "call detach() on what is carried to the next step",
    ),
    _of_error(
        "sizes-do-not-meet",
        "shape-mismatch",
        "A layer or a loss expects a different shape: image size, channels, classes, or a smaller last batch.",
        "print the shapes before the failing line; drop_last=True",
        likely=0.4,
    ),
    _of_error(
        "left-on-the-cpu",
        "shape-mismatch",
        "A tensor was not moved to the device: a target, a mask, or a tensor created in forward().",
        "call x.to(device); register tensors of a module with register_buffer",
    ),
    _of_error(
        "types-mixed",
        "shape-mismatch",
        "Dtypes are mixed: float64 from NumPy, half precision without autocast, or labels that are not int64.",
        "use .float() for arrays, .long() for labels, torch.autocast around the forward pass",
    ),
    _of_error(
        "triton-missing",
        "compile-trouble",
        "torch.compile needs Triton on this device, but Triton is missing or too old.",
        "pip install triton, or run without torch.compile",
    ),
    _of_error(
        "memory-while-autotuning",
        "compile-trouble",
        "max-autotune compiles many kernels at once, and the host runs out of memory.",
        "set TORCHINDUCTOR_COMPILE_THREADS=4, or use mode='default'",
        likely=0.15,
    ),
    _of_error(
        "compiler-and-workers",
        "compile-trouble",
        "Compiler processes and loader workers were forked from each other (`pthread_join failed`).",
        "set TORCHINDUCTOR_COMPILE_THREADS=1, or multiprocessing_context='forkserver' for the loader",
        likely=0.15,
    ),
    _of_error(
        "calls-in-the-wrong-order",
        "loop-mistake",
        "Scheduler, scaler, clipping and optimizer are called in the wrong order.",
        "backward → scaler.unscale_ → clip → scaler.step → scaler.update → scheduler.step → zero_grad",
        likely=0.5,
    ),
    _of_error(
        "half-weights-with-a-scaler",
        "loop-mistake",
        "The weights are float16, but a scaler works only on float32 weights.",
        "load them in float32 and use autocast, or train in bfloat16 without a scaler",
    ),
    _of_error(
        "port-taken",
        "distributed-setup",
        "An earlier run still holds the port.",
        "kill that run, or use torchrun --standalone or --master-port 29501",
    ),
    _of_error(
        "ranks-do-not-meet",
        "distributed-setup",
        "A rank did not start, or cannot reach the address of rank 0.",
        "use the same --rdzv-endpoint everywhere; set NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME to the right interface",
    ),
    _of_error(
        "cards-not-one-each",
        "distributed-setup",
        "Ranks share a GPU, or a rank picks its GPU by RANK instead of LOCAL_RANK.",
        "call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before init_process_group",
        likely=0.2,
    ),
    _of_error(
        "mistake-in-the-script",
        "script-error",
        "The script raised the error: an unhandled case, or a bug in rarely executed code.",
        "read the last lines of the traceback in your own code",
        likely=0.3,
    ),
    _of_error(
        "one-bad-sample",
        "script-error",
        "One sample is malformed, and the code that reads it raises an error.",
        "catch the error in the data set, log the sample, and return another one",
        likely=0.2,
    ),
    _of_error(
        "ended-by-the-scheduler",
        "process-died",
        "The job's time limit was reached, the machine was preempted, or someone stopped the process.",
        "save often and resume; request a signal before the end (#SBATCH --signal=B:USR1@120)",
        signs=("terminated",),
        ruled_out_by=("crashed", "exited", "interrupted"),
    ),
    _of_error(
        "exited-by-itself",
        "process-died",
        "The script exited by itself: it called sys.exit, or printed an error of its own.",
        "read the last lines of its output",
        needs=("exited",),
    ),
    _of_error(
        "another-rank-first",
        "process-died",
        "Another rank failed, and the launcher stopped this one.",
        "read the first traceback, not the last",
        needs=("several-ranks",),
    ),
    _of_error(
        "killed-from-outside",
        "process-died",
        "SIGKILL ended the process; its sender is unknown: often the OOM killer, else the scheduler or a person.",
        "check dmesg -T | grep -i -E 'oom|killed process', the job's report, and other users of the machine",
        likely=0.2,
        signs=("killed",),
        ruled_out_by=("crashed", "terminated", "exited", "interrupted"),
    ),
    _of_error(
        "crash-in-a-library",
        "process-died",
        "Compiled code crashed (exit 139 or 134).",
        "run python -X faulthandler train.py; try num_workers=0; update the library in the traceback",
        likely=0.2,
        signs=("crashed",),
        ruled_out_by=("killed", "terminated", "exited", "interrupted"),
    ),
    _of_error(
        "file-damaged",
        "unreadable-sample",
        "A file is empty, truncated, or not of the type that its name says.",
        "check every file before training (holdfast validate), and remove the bad ones",
        likely=0.4,
    ),
    _of_error(
        "path-wrong",
        "unreadable-sample",
        "The path, the pattern or the folder layout is not what the data set expects.",
        "print len(dataset) and the first path",
    ),
)
