"""The tables of a run: every column of every table, in one place.

The tables in `docs/recording.md` are generated from this file. A column is eight bytes wide: a float, an integer, or a string
kept as a number that points into the rank's dictionary of strings.

A value that was not measured is *missing*, which is not the same as NaN: a loss that is NaN must stay visible.
Missing is one NaN bit pattern that no arithmetic produces (floats) and the smallest integer (the rest).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum

MISSING_BITS = 0x7FF8_484F_4C44_4641  # a quiet NaN that carries "HOLDFA"
MISSING: float = struct.unpack("<d", struct.pack("<Q", MISSING_BITS))[0]
MISSING_INT = -(2**63)


class Kind(Enum):
    """What a column holds; the value is its numpy dtype."""

    FLOAT = "<f8"
    INT = "<i8"
    STRING = "<i8|string"

    @property
    def dtype(self) -> str:
        """The numpy dtype of the eight bytes on disk."""
        return "<f8" if self is Kind.FLOAT else "<i8"

    @property
    def missing(self) -> float | int:
        """The value that stands for "not measured"."""
        return MISSING if self is Kind.FLOAT else MISSING_INT


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, what it holds, what it means."""

    name: str
    kind: Kind
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: its columns, what a row is, and why it may be empty. A writer may leave out columns at the end: they are 0."""

    name: str
    a_row_is: str
    empty_because: str
    columns: tuple[Column, ...]
    first_segment_rows: int = 1024
    segment_rows: int = 65536

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns, in the order they are stored and appended."""
        return tuple(column.name for column in self.columns)


def _float(name: str, description: str) -> Column:
    return Column(name, Kind.FLOAT, description)


def _int(name: str, description: str) -> Column:
    return Column(name, Kind.INT, description)


def _string(name: str, description: str) -> Column:
    return Column(name, Kind.STRING, description)


_STEP = _int("step", "number of the step, from 0: steps that the main optimizer made before it")
_TIME = _float("time", "time of recording, in seconds since 1970")

STEPS = Table(
    name="steps",
    a_row_is="one step of the main optimizer (the one with most parameters)",
    empty_because="no optimizer has stepped yet. Rows appear with the first `optimizer.step()` of the script.",
    columns=(
        _STEP,
        _int("epoch", "epochs of the training loader completed before this batch; missing without a loader"),
        _TIME,
        _float("loss", "the loss passed to `backward`, unscaled; summed over the `backward` calls of the step"),
        _float("lr", "learning rate of the first parameter group"),
        _float("grad_norm", "global gradient norm, before clipping, unscaled"),
        _float("weight_norm", "norm of all weights (sampled)"),
        _float("update_ratio", "norm of the update over norm of the weights, for a subset of the weights (sampled)"),
        _float("step_seconds", "time since the end of the previous step, excluding evaluation"),
        _float("data_seconds", "part of `step_seconds` spent waiting for the training loader"),
        _int("samples", "samples drawn from the training loader for this step"),
        _int("skipped", "1 if the gradient scaler skipped the update"),
        _float("scale", "the gradient scaler's scale; missing without a scaler"),
        _int("gpu_allocated", "bytes allocated by tensors on this rank's GPU"),
        _int("gpu_reserved", "bytes reserved by the caching allocator on this rank's GPU"),
        _int("host_rss", "resident memory of the process, in bytes"),
        _int("gpu_peak", "peak of `gpu_allocated` since the start, or since the script reset it"),
        _int("workers_rss", "total resident memory of the loader workers, in bytes"),
        _int("non_finite", "number of gradient tensors with NaN or Inf"),
        _int("backwards", "`backward` calls in this step"),
        _float("clip_norm", "`max_norm` of `clip_grad_norm_`; missing if the script does not clip"),
        _float("holdfast_seconds", "overhead of Holdfast in this step, in seconds of the training thread"),
    ),
)

GROUPS = Table(
    name="groups",
    a_row_is="one parameter group of one optimizer, whenever its learning rate or weight decay changed",
    empty_because="no optimizer has stepped yet. Rows appear with the first step and whenever a learning rate changes.",
    columns=(
        _STEP,
        _int("optimizer", "index of the optimizer in the training; 0 is the main optimizer"),
        _int("group", "index of the group in `optimizer.param_groups`"),
        _float("lr", "learning rate from this step on"),
        _float("weight_decay", "weight decay from this step on"),
    ),
)

PARAMETERS = Table(
    name="parameters",
    a_row_is="one parameter's gradient at a sampled step, or at any step if it was not finite",
    empty_because="no step was sampled yet. A small budget reduces per-parameter norms first: "
    "raise it with `holdfast run --budget 5%`.",
    columns=(
        _STEP,
        _string("name", "the parameter's name in its model"),
        _float("grad_norm", "norm of its gradient"),
        _float("grad_max", "largest absolute value in its gradient"),
        _float("weight_norm", "norm of the parameter (sampled)"),
        _int("non_finite", "number of NaN and Inf values in its gradient"),
    ),
)

UNTRAINED = Table(
    name="untrained",
    a_row_is="one parameter that was not updated at a sampled step; written when its state changes",
    empty_because="every parameter of the model is trained, or no step was sampled yet.",
    columns=(
        _STEP,
        _string("name", "the parameter's name in its model"),
        _string(
            "why", "frozen, no-gradient, unused (nor does its module run) or no-optimizer (in none); trained once it is again"
        ),
        _int("position", "index of the parameter, in the order of `model.parameters()`"),
        _int("of", "number of parameters in the model"),
    ),
)

INPUTS = Table(
    name="inputs",
    a_row_is="one field of a sampled training or evaluation batch",
    empty_because="the script draws no batches from a `torch.utils.data.DataLoader`, or none was sampled yet. "
    "Batches in host memory are sampled, within the budget.",
    columns=(
        _STEP,
        _string("split", "train, or val for an evaluation batch"),
        _int("source", "index of its data set; 0 is the training set"),
        _string("field", "the field's name or position in the batch"),
        _float("mean", "mean of the sampled values"),
        _float("deviation", "standard deviation of the sampled values"),
        _float("lowest", "smallest sampled value"),
        _float("highest", "largest sampled value"),
        _int("samples", "samples of the batch that were read"),
        _int("distinct", "how many of these samples are distinct"),
        _int("known", "how many of these samples occurred in an earlier training batch"),
        _float(
            "entropy",
            "for integers (labels, tokens): entropy of their frequencies so far; otherwise missing",
        ),
        _float("known_share", "fraction of the training data read so far; missing if its size is unknown"),
        _int("repeats", "at the start of an epoch: how many epochs in a row started with this batch; otherwise missing"),
    ),
)

MODULES = Table(
    name="modules",
    a_row_is="one module's forward or backward pass in a sampled step",
    empty_because="no step was sampled yet. Modules are timed on sampled steps, within the budget: "
    "raise it with `holdfast run --budget 5%`. A fully compiled model shows only its outermost module.",
    columns=(
        _STEP,
        _string("module", "the module's name in its model; `(model)` is the whole model"),
        _string("stage", "forward or backward"),
        _float("seconds", "duration; on a GPU, device time"),
        _int("gpu_allocated", "bytes allocated by tensors on the GPU at its end"),
        _int("host_rss", "resident memory of the process at its end, in bytes"),
        _TIME,
    ),
)

EVALUATIONS = Table(
    name="evaluations",
    a_row_is="one metric of one evaluation",
    empty_because="no evaluation was detected. Losses computed between `model.eval()` and `model.train()` under `no_grad` are "
    "recorded automatically, and under `holdfast run` also metrics that the script prints (`val_acc 0.94`). Record anything else "
    'with `run.log(accuracy=0.9, split="val")`.',
    columns=(
        _STEP,
        _int("epoch", "training epoch at the time of the evaluation"),
        _string("split", "val, train, test, …"),
        _string("name", "name of the metric; `loss` for a loss that Holdfast measured itself"),
        _float("value", "value of the metric; a loss is the mean over the samples"),
        _int("samples", "number of samples; missing if unknown"),
        _TIME,
        _int("printed", "1 if it was parsed from the script's output, 0 if it was measured"),
    ),
)

LOADER = Table(
    name="loader",
    a_row_is="one worker of the training loader, about once a second; worker -1 is a loader without workers",
    empty_because="the script draws no batches from a `torch.utils.data.DataLoader`, or less than a second has passed.",
    columns=(
        _STEP,
        _int("worker", "index of the worker; -1 if the loader runs in the training process"),
        _float("wait_seconds", "time the training waited for batches of this worker since the previous row"),
        _int("queue", "batches that are ready and waiting"),
        _int("rss", "resident memory of the worker process, in bytes"),
        _TIME,
        _int("pid", "process id of the worker"),
        _int("persistent", "1 if workers are kept between epochs (`persistent_workers`), else 0"),
        _int("pinned", "1 if batches are pinned for the copy to a GPU (`pin_memory`), else 0"),
    ),
)

PROCESSES = Table(
    name="processes",
    a_row_is="one process of the run, sampled from outside every few seconds",
    empty_because="no watcher is running: `holdfast run`, or the side process of `holdfast.watch`, writes these rows.",
    columns=(
        _TIME,
        _int("pid", "process id"),
        _int("parent", "process id of the parent"),
        _string("command", "start of its command line"),
        _string("state", "running, sleeping, disk-sleep, stopped, zombie"),
        _int("rss", "resident memory, in bytes"),
        _float("cpu", "CPU cores in use since the previous row: 1.0 is one core"),
        _int("threads", "number of threads"),
    ),
)

GPUS = Table(
    name="gpus",
    a_row_is="one GPU of the machine, sampled from outside every few seconds",
    empty_because="no NVIDIA driver responded on this machine, or no watcher is running.",
    columns=(
        _TIME,
        _int("gpu", "index of the GPU"),
        _string("name", "name of the GPU"),
        _float("utilisation", "fraction of the time in which a kernel was running, 0 to 1"),
        _int("memory_used", "bytes in use by all processes"),
        _int("memory_total", "total bytes"),
        _float("temperature", "degrees Celsius"),
        _float("power", "watts"),
    ),
)

COLLECTIVES = Table(
    name="collectives",
    a_row_is="one `torch.distributed` collective called by the script; with several ranks also `backward` of every second step",
    empty_because="the script itself called no `torch.distributed` collective. "
    "Collectives that DistributedDataParallel starts inside `backward` are not listed singly: `backward` includes them.",
    columns=(
        _STEP,
        _string("operation", "all_reduce, broadcast, barrier, …; backward for a whole backward pass"),
        _int("bytes", "bytes of this rank's tensors in the call"),
        _float("seconds", "duration of the call"),
        _TIME,
    ),
)

STACKS = Table(
    name="stacks",
    a_row_is="one frame of one thread's stack in one stack dump",
    empty_because="this run has no stack dump. `holdfast backtrace` takes one while the run is alive.",
    columns=(
        _TIME,
        _int("pid", "process id"),
        _int("rank", "rank of the process; a loader worker has the rank that it serves"),
        _string("role", "role of the process: rank 0, rank 0 loader worker 1, torchrun, …"),
        _int("worker", "index of the loader worker"),
        _string("state", "state of the process: running, sleeping, stopped, gone"),
        _int("thread", "system id of the thread"),
        _string("thread_name", "the thread's name"),
        _int("holds_gil", "1 if the thread holds the GIL"),
        _int("active", "1 if the thread is computing, 0 if it is waiting"),
        _string("call", "system call in which the thread waits, and its file; running if it is in none"),
        _int("depth", "0 is the innermost frame"),
        _string("func", "function name"),
        _string("file", "file; for a native frame, the library"),
        _int("lineno", "line number; 0 if unknown"),
        _int("native", "1 for a frame of C or C++ code"),
        _string("locals", "requested local variables, as JSON"),
        _string("by", "reader of the stack: py-spy, faulthandler, or nobody"),
        _string("problem", "why the process could not be read from outside"),
    ),
)

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        STEPS,
        GROUPS,
        PARAMETERS,
        UNTRAINED,
        INPUTS,
        MODULES,
        EVALUATIONS,
        LOADER,
        PROCESSES,
        GPUS,
        COLLECTIVES,
        STACKS,
    )
}
